"""What a chain goes by: a request's numbers, made harmless, and in which order its steps come.

A number that is none means that its step is off; what would overflow is bounded. Knows no tokens and no logits.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from shared.jobs import SamplerKind, Sampling
from worker.engine.sampling.dry import Repetition
from worker.engine.sampling.penalties import NO_RATES, Rates

COLDEST = 1e-5
"""Least temperature above zero: with it a logit that is 0.001 behind is already e^100 less likely. Whatever is colder
is greedy; dividing by less could overflow."""
LARGEST = 1e30
"""Of any number."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Names and meaning of the numbers are those of `Sampling`."""

    temperature: float
    """0 leaves the likeliest token only."""
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    tfs_z: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    rates: Rates
    repetition: Repetition

    @classmethod
    def of(cls, sampling: Sampling, n_vocab: int) -> Self:
        rates = Rates(
            repeat=finite(sampling.repeat_penalty, 1.0) if sampling.repeat_penalty > 0 else 1.0,
            frequency=finite(sampling.frequency_penalty, 0.0),
            presence=finite(sampling.presence_penalty, 0.0),
        )
        return cls(
            temperature=finite(sampling.temperature, 0.0) if sampling.temperature > COLDEST else 0.0,
            dynatemp_range=0.0 if sampling.mirostat else max(finite(sampling.dynatemp_range, 0.0), 0.0),
            dynatemp_exponent=finite(sampling.dynatemp_exponent, 1.0),
            top_k=sampling.top_k if 0 < sampling.top_k < n_vocab else n_vocab,
            top_p=finite(sampling.top_p, 1.0),
            min_p=finite(sampling.min_p, 0.0),
            typical_p=finite(sampling.typical_p, 1.0),
            top_n_sigma=finite(sampling.top_n_sigma, -1.0),
            tfs_z=finite(sampling.tfs_z, 1.0),
            xtc_probability=finite(sampling.xtc_probability, 0.0),
            xtc_threshold=finite(sampling.xtc_threshold, 1.0),
            min_keep=min(sampling.min_keep, n_vocab),
            rates=rates if sampling.repeat_last_n else NO_RATES,
            repetition=Repetition(
                multiplier=finite(sampling.dry_multiplier, 0.0) if sampling.dry_penalty_last_n else 0.0,
                base=finite(sampling.dry_base, 0.0),
                allowed_length=sampling.dry_allowed_length,
            ),
        )

    @property
    def has_fixed_temperature(self) -> bool:
        return self.dynatemp_range == 0

    def is_on(self, kind: SamplerKind, n_vocab: int) -> bool:
        """Whether a step changes anything. What adapts is not one among others: it comes last, wherever it is named."""
        match kind:
            case SamplerKind.PENALTIES:
                return self.rates != NO_RATES
            case SamplerKind.DRY:
                return self.repetition.multiplier != 0 and self.repetition.base >= 1
            case SamplerKind.TOP_N_SIGMA:
                return self.top_n_sigma > 0
            case SamplerKind.TOP_K:
                return self.top_k < n_vocab
            case SamplerKind.TYPICAL_P:
                return self.typical_p < 1
            case SamplerKind.TOP_P:
                return self.top_p < 1
            case SamplerKind.MIN_P:
                return self.min_p > 0
            case SamplerKind.XTC:
                return self.xtc_probability > 0 and self.xtc_threshold <= 0.5
            case SamplerKind.TEMPERATURE:
                return self.temperature != 1 or not self.has_fixed_temperature
            case SamplerKind.TAIL_FREE:
                return self.tfs_z < 1
            case SamplerKind.ADAPTIVE_P:
                return False


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Which steps a row goes through; what changes nothing is left out. Rows of the same chain are computed together,
    and there is one object for each, so that they are found quickly."""

    row_steps: tuple[SamplerKind, ...]
    """Those at the beginning that a whole row goes through, unsorted."""
    pool_steps: tuple[SamplerKind, ...]
    """The others, in their order."""
    is_greedy: bool
    """Whatever they do, the likeliest token of the row is left alone in the end."""

    @property
    def steps(self) -> tuple[SamplerKind, ...]:
        return self.row_steps + self.pool_steps

    @staticmethod
    def of(sampling: Sampling, parameters: Parameters, n_vocab: int) -> Chain:
        named = sampling.samplers if sampling.mirostat == 0 else (SamplerKind.TEMPERATURE,)
        steps = tuple(kind for kind in named if parameters.is_on(kind, n_vocab))
        on_rows = _ON_ROWS if parameters.temperature and parameters.has_fixed_temperature else _ON_ROWS_UNLESS_SCALED
        n_on_rows = next((index for index, kind in enumerate(steps) if kind not in on_rows), len(steps))
        return _chain(steps[:n_on_rows], steps[n_on_rows:], _is_greedy(parameters, steps[n_on_rows:]))


_chain = lru_cache(maxsize=1024)(Chain)

_ON_ROWS_UNLESS_SCALED = {SamplerKind.PENALTIES, SamplerKind.DRY, SamplerKind.TOP_N_SIGMA}
_ON_ROWS = _ON_ROWS_UNLESS_SCALED | {SamplerKind.TEMPERATURE}
_KEEPING_FIRST = {
    SamplerKind.TOP_K,
    SamplerKind.TOP_P,
    SamplerKind.MIN_P,
    SamplerKind.TOP_N_SIGMA,
    SamplerKind.TAIL_FREE,
}


def _is_greedy(parameters: Parameters, pool_steps: tuple[SamplerKind, ...]) -> bool:
    """Whether a temperature of zero comes before anything that could put another token first."""
    if parameters.temperature or not parameters.has_fixed_temperature:
        return False
    before = itertools.takewhile(lambda kind: kind is not SamplerKind.TEMPERATURE, pool_steps)
    return SamplerKind.TEMPERATURE in pool_steps and _KEEPING_FIRST.issuperset(before)


def finite(value: float, otherwise: float) -> float:
    """A number that nothing overflows with; `otherwise` for one that is none."""
    return otherwise if math.isnan(value) else min(max(value, -LARGEST), LARGEST)
