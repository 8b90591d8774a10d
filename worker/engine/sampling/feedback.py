"""Samplers that remember how likely the tokens were that they chose, and aim at what they are told to aim at.

Each has two verbs: `narrow` says which candidates there are and what each would teach, `learn` is told which was
chosen. What they remember cannot be rebuilt from token ids, so it travels with the tokens (`memory`).

Formulas are those of llama.cpp's `llama-sampler.cpp`. Know the candidates of one row; nothing of chains.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shared.jobs import SamplerKind, Sampling
from worker.engine.sampling.parameters import finite
from worker.engine.sampling.pool import Floats, Ids

Shares = NDArray[np.float64]

TINY = 1e-12

N_ESTIMATED = 100
"""Of the likeliest tokens, from which mirostat estimates how fast a row falls."""


class Narrowed(NamedTuple):
    """Candidates of one row."""

    columns: Ids
    """(n,), of those that are left, in rising order."""
    logits: Floats
    """(n,), theirs."""
    lessons: Shares
    """(n,), the probability of each that is learnt from if it is chosen."""


class Feedback(Protocol):
    @property
    def memory(self) -> tuple[float, ...]:
        """What it has learnt."""

    def restore(self, memory: tuple[float, ...]) -> None:
        """Go on from there; what it cannot have said is ignored."""

    def narrow(self, logits: Floats, shares: Shares) -> Narrowed:
        """What can be chosen of candidates (n,), which fall; `shares` are their probabilities."""

    def learn(self, lesson: float) -> None:
        """A token of this probability was chosen."""


def feedback_of(sampling: Sampling, n_vocab: int) -> Feedback | None:
    """What a request asks for, if anything."""
    tau, eta = finite(sampling.mirostat_tau, 5.0), finite(sampling.mirostat_eta, 0.1)
    match sampling.mirostat:
        case 1:
            return Mirostat(tau, eta, n_vocab)
        case 2:
            return MirostatV2(tau, eta)
    target = finite(sampling.adaptive_target, -1.0)
    if SamplerKind.ADAPTIVE_P in sampling.samplers and target >= 0:
        return AdaptiveP(target, finite(sampling.adaptive_decay, 0.9))
    return None


class MirostatV2:
    """Mirostat 2.0 (arXiv 2007.14966): drops tokens whose surprise is above `mu`, and moves that so that surprise comes
    to `tau` bits on average, at the rate `eta`."""

    def __init__(self, tau: float, eta: float) -> None:
        self._tau = tau
        self._eta = eta
        self._mu = 2 * tau

    @property
    def memory(self) -> tuple[float, ...]:
        return (self._mu,)

    def restore(self, memory: tuple[float, ...]) -> None:
        if len(memory) == 1 and math.isfinite(memory[0]):
            (self._mu,) = memory

    def narrow(self, logits: Floats, shares: Shares) -> Narrowed:
        least = 2.0 ** -min(max(self._mu, -1.0), 1000.0)
        return _first(logits, shares, max(int((shares >= least).sum()), 1))

    def learn(self, lesson: float) -> None:
        surprise = -math.log2(max(lesson, TINY))
        self._mu = finite(self._mu - self._eta * (surprise - self._tau), 2 * self._tau)


class Mirostat(MirostatV2):
    """Mirostat (the same paper): the number of tokens that are left follows from `mu` and from how fast a Zipf's law
    falls that fits the likeliest ones."""

    def __init__(self, tau: float, eta: float, n_vocab: int) -> None:
        super().__init__(tau, eta)
        self._n_vocab = n_vocab

    def narrow(self, logits: Floats, shares: Shares) -> Narrowed:
        return _first(logits, shares, self._n_kept(logits))

    def _n_kept(self, logits: Floats) -> int:
        falls = -np.diff(logits[:N_ESTIMATED].astype(np.float64))
        steps = np.log1p(1 / np.arange(1.0, len(falls) + 1))
        exponent = float((steps * falls).sum() / max((steps * steps).sum(), TINY))
        excess = exponent - 1
        log_n = math.log(self._n_vocab)
        # Towards an excess of zero the quotient goes to 1 / log n; elsewhere it is above zero, too.
        quotient = excess / -math.expm1(-excess * log_n) if abs(excess * log_n) > TINY else 1 / max(log_n, TINY)
        log_kept = (math.log(quotient) + self._mu * math.log(2)) / max(exponent, TINY)
        return int(math.exp(min(max(log_kept, 0.0), log_n)))


class AdaptiveP:
    """Prefers tokens of a probability near `target`, which moves against what was chosen on average, older tokens
    counting `decay` times as much with each new one (https://github.com/ggml-org/llama.cpp/pull/17927)."""

    WIDTH = 0.3
    PEAK = 5.0
    SHARPNESS = 10.0
    SLOWEST = 0.99

    def __init__(self, target: float, decay: float) -> None:
        self._target = min(target, 1.0)
        self._decay = min(max(decay, 0.0), self.SLOWEST)
        self._weight = 1 / (1 - self._decay)
        self._sum = target * self._weight

    @property
    def memory(self) -> tuple[float, ...]:
        return self._sum, self._weight

    def restore(self, memory: tuple[float, ...]) -> None:
        if len(memory) == 2 and all(math.isfinite(each) for each in memory) and memory[1] > 0:
            self._sum, self._weight = memory

    def narrow(self, logits: Floats, shares: Shares) -> Narrowed:
        target = min(max(2 * self._target - self._sum / self._weight, 0.0), 1.0)
        distances = np.abs(shares - target) / self.WIDTH
        adapted = (self.PEAK - self.SHARPNESS * distances**2 / (1 + distances)).astype(np.float32)
        columns = np.argsort(-adapted, kind="stable")
        return Narrowed(columns, adapted[columns], shares[columns])

    def learn(self, lesson: float) -> None:
        self._sum = lesson + self._decay * self._sum
        self._weight = 1 + self._decay * self._weight


def _first(logits: Floats, shares: Shares, n_kept: int) -> Narrowed:
    left = shares[:n_kept]
    return Narrowed(np.arange(len(left)), logits[: len(left)], left / left.sum())
