"""Chooses the next token of every row: llama.cpp's default chain in numpy, with a draw of our own.

Chain: logit bias, penalties, top-k, typical, top-p, min-p, temperature; the meaning of each is that of llama.cpp's
`llama-sampler.cpp`, which a test holds it to. The draw comes from a counter, not from a stream: it depends on the
seed and on the token's position alone, so the same text comes out in any slot and after a restart.

Knows logits and ids; nothing of llama.cpp's objects, sequences or text.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from shared.errors import SlotstreamError
from shared.jobs import Sampling
from worker.engine.task import GenerateTask

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

NO_TOKEN = -1
"""A row in which nothing can be chosen: every token is banned, or the logits are not numbers."""

COLDEST = 1e-5
"""Least temperature above zero: with it a logit that is 0.001 behind is already e^100 less likely."""
LEAST_LOGIT, LARGEST_LOGIT = np.float32(-1e30), np.float32(1e30)
"""Bounds of a shaped logit, so that no sum or quotient of them overflows; a ban stays minus infinity."""

N_CHUNKS = 1024
"""Chunks of a row, whose maxima bound the k-th largest logit from below."""


class Setting(NamedTuple):
    """What a sampler has to know of its model and its slot."""

    n_vocab: int
    n_ctx: int
    """Longest that the sequence can get, in tokens."""
    eog: frozenset[int] = frozenset()
    """Tokens that end a generation."""
    newline: int = -1
    """The token of a line break; -1 when there is none."""


class Constraining(Protocol):
    """What a sampler asks of a constraint: rules that say, from all tokens so far, which may come next."""

    @property
    def is_over(self) -> bool:
        """Nothing may come any more but an end of the generation. No bias is heeded then: it could ban that too."""

    @property
    def failure(self) -> SlotstreamError | None:
        """Why nothing may come, where the rules themselves are at fault."""

    def mask(self, row: Floats) -> None:
        """Set the logits, (n_vocab), of all tokens that may not come next to -inf, in place."""

    def accept(self, token: int) -> None:
        """This one comes next."""


class Sampler:
    """How one sequence chooses, and the window of tokens that its penalties look at."""

    __slots__ = (
        "_bias_ids",
        "_bias_values",
        "_penalties",
        "_window",
        "constraint",
        "is_greedy",
        "is_shaping",
        "is_untruncated",
        "min_keep",
        "min_p",
        "seed",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    )

    def __init__(
        self,
        sampling: Sampling,
        seed: int,
        *,
        n_vocab: int,
        eog: frozenset[int] = frozenset(),
        constraint: Constraining | None = None,
    ) -> None:
        self.seed = seed
        self.constraint = constraint
        # Whatever is below the coldest is as good as greedy; dividing by less would overflow.
        self.temperature = sampling.temperature if sampling.temperature > COLDEST else 0.0
        self.top_k = min(sampling.top_k, n_vocab) if sampling.top_k > 0 else n_vocab
        self.top_p = min(max(sampling.top_p, 0.0), 1.0)
        self.min_p = min(max(sampling.min_p, 0.0), 1.0)
        self.typical_p = min(max(sampling.typical_p, 0.0), 1.0)
        self.min_keep = sampling.min_keep
        # With `typical` even the likeliest token can fall, so an argmax over the row is not enough.
        self.is_greedy = self.temperature <= 0 and self.typical_p >= 1.0
        self.is_untruncated = (
            self.temperature > 0
            and self.top_k == n_vocab
            and (self.top_p, self.min_p, self.typical_p) == (1.0, 0.0, 1.0)
        )
        biases = _biases(sampling, n_vocab, eog)
        self._bias_ids = np.fromiter(biases.keys(), dtype=np.int64, count=len(biases))
        self._bias_values = np.fromiter(biases.values(), dtype=np.float32, count=len(biases))
        # A factor of zero or less has no meaning; llama.cpp wants none either.
        repeat = sampling.repeat_penalty if sampling.repeat_penalty > 0 else 1.0
        self._penalties = (repeat, sampling.frequency_penalty, sampling.presence_penalty)
        has_penalties = sampling.repeat_last_n != 0 and self._penalties != (1.0, 0.0, 0.0)
        self._window = PenaltyWindow(sampling.repeat_last_n) if has_penalties else None
        self.is_shaping = bool(biases) or has_penalties or constraint is not None

    @classmethod
    def of(cls, task: GenerateTask, setting: Setting, constraint: Constraining | None = None) -> Self:
        """As it stands behind the last token that an earlier attempt produced. The constraint is a fresh one."""
        sampling = task.request.sampling
        sampler = cls(sampling, task.seed, n_vocab=setting.n_vocab, eog=setting.eog, constraint=constraint)
        for token in task.prompt:
            sampler._see(token)
        for token in task.produced:
            sampler.accept(token)
        return sampler

    @property
    def memory(self) -> tuple[float, ...]:
        """What a replay of ids would not rebuild; to be given to `restore` when another attempt goes on from here."""
        return ()

    def accept(self, token: int) -> None:
        """A token was chosen."""
        self._see(token)
        if self.constraint is not None:
            self.constraint.accept(token)

    def _see(self, token: int) -> None:
        if self._window is not None:
            self._window.push(token)

    def shape(self, row: Floats) -> None:
        """Apply biases, penalties and the constraint to a row of logits, in place."""
        if len(self._bias_ids) and not (self.constraint is not None and self.constraint.is_over):
            row[self._bias_ids] = np.minimum(row[self._bias_ids] + self._bias_values, LARGEST_LOGIT)
        self._penalize(row)
        if self.constraint is not None:
            self.constraint.mask(row)

    def _penalize(self, row: Floats) -> None:
        if self._window is None or not self._window.counts:
            return
        repeat, frequency, presence = self._penalties
        n = len(self._window.counts)
        ids = np.fromiter(self._window.counts.keys(), dtype=np.int64, count=n)
        counts = np.fromiter(self._window.counts.values(), dtype=np.float32, count=n)
        logits = row[ids]
        with np.errstate(all="ignore"):
            logits = np.where(logits <= 0, logits * np.float32(repeat), logits / np.float32(repeat))
            shaped = logits - counts * np.float32(frequency) - np.float32(presence)
            row[ids] = np.where(logits > -np.inf, np.clip(shaped, LEAST_LOGIT, LARGEST_LOGIT), logits)


class PenaltyWindow:
    """Counts of the last `size` tokens; -1 keeps all."""

    __slots__ = ("_last", "_size", "counts")

    def __init__(self, size: int) -> None:
        self._size = size
        self._last: collections.deque[int] = collections.deque()
        self.counts: dict[int, int] = {}

    def push(self, token: int) -> None:
        self.counts[token] = self.counts.get(token, 0) + 1
        if self._size < 0:
            return
        self._last.append(token)
        if len(self._last) > self._size:
            gone = self._last.popleft()
            self.counts[gone] -= 1
            if not self.counts[gone]:
                del self.counts[gone]


def _biases(sampling: Sampling, n_vocab: int, eog: frozenset[int]) -> dict[int, float]:
    """Bias by id; several for one id add up, those outside the vocabulary are ignored."""
    biases: dict[int, float] = {}
    for token, bias in sampling.logit_bias:
        if isinstance(token, int) and 0 <= token < n_vocab:
            biases[token] = biases.get(token, 0.0) + (-np.inf if bias is None else bias)
    if sampling.ignore_eos:
        biases.update(dict.fromkeys(eog, -np.inf))
    return biases


class Scores(NamedTuple):
    """How likely the chosen token was, and the likeliest ones, likeliest first: natural logarithms, finite."""

    logprob: float
    ids: Ids
    logprobs: Floats


class Choice(NamedTuple):
    """The next token of a row; `token` is NO_TOKEN where there is none. Scores are there when they were asked for."""

    token: int
    scores: Scores | None = None


class Candidates(NamedTuple):
    """Tokens that can still be chosen, likeliest first; rows are filled up with -inf logits."""

    ids: Ids
    """(rows, n)"""
    logits: Floats
    """(rows, n), after the temperature"""


def choose(logits: Floats, samplers: Sequence[Sampler], positions: Sequence[int]) -> list[Choice]:
    """The next token of each row of (rows, n_vocab) logits, which are changed.

    `positions` are those that the new tokens will have in their sequences.
    """
    for row, sampler in zip(logits, samplers, strict=True):
        if sampler.is_shaping:
            sampler.shape(row)
    if all(sampler.is_greedy for sampler in samplers):
        return [Choice(int(token)) for token in _likeliest(logits)]
    numbers = uniforms([sampler.seed for sampler in samplers], positions)
    tokens = np.full(len(samplers), NO_TOKEN)
    narrow: list[tuple[int, _Survey]] = []
    for index, (row, sampler) in enumerate(zip(logits, samplers, strict=True)):
        if sampler.is_greedy:
            tokens[index] = _likeliest(row[None])[0]
        elif sampler.is_untruncated:
            tokens[index] = _draw_from_all(row, sampler.temperature, numbers[index])
        elif len((survey := _survey(row, sampler)).ids) <= N_CHUNKS:
            narrow.append((index, survey))
        else:  # a wide row would make all others as wide as itself
            tokens[index] = _draw(_truncate([survey], [sampler]), numbers[[index]])[0]
    if narrow:
        rows = [index for index, _ in narrow]
        found = _truncate([survey for _, survey in narrow], [samplers[index] for index in rows])
        tokens[rows] = _draw(found, numbers[rows])
    return [Choice(int(token)) for token in tokens]


def candidates(row: Floats, sampler: Sampler) -> Candidates:
    """What the chain leaves of one row, which has had its biases and penalties already."""
    return _truncate([_survey(row, sampler)], [sampler])


def _likeliest(logits: Floats) -> Ids:
    tokens = logits.argmax(axis=1)
    best = logits[np.arange(len(logits)), tokens]
    found: Ids = np.where(np.isfinite(best), tokens, NO_TOKEN)
    return found


def _truncate(surveys: Sequence[_Survey], samplers: Sequence[Sampler]) -> Candidates:
    ids, logits, masses = _pack(surveys)
    for index, sampler in enumerate(samplers):
        if sampler.typical_p < 1.0:
            _keep_typical(ids[index], logits[index], sampler)
    n_kept = np.minimum(_n_top_p(logits, masses, samplers), _n_min_p(logits, samplers))
    logits[np.arange(logits.shape[1]) >= n_kept[:, None]] = -np.inf
    # A temperature of zero leaves the likeliest alone; dividing by anything tiny would do the same with overflow.
    temperatures = np.array([[s.temperature if s.temperature > 0 else 1.0] for s in samplers], np.float32)
    logits /= temperatures
    for index, sampler in enumerate(samplers):
        if sampler.temperature <= 0:
            logits[index, 1:] = -np.inf
    return Candidates(ids, logits)


class _Survey(NamedTuple):
    """The largest logits of one row, likeliest first, and the sum of exp(logit - largest) that a share refers to."""

    ids: Ids
    logits: Floats
    mass: float


def _survey(row: Floats, sampler: Sampler) -> _Survey:
    """Everything of a row that can survive top-k, and little of what cannot survive the samplers after it."""
    if sampler.top_k < len(row):
        ids = _largest(row, sampler.top_k)
        return _sorted(row, ids, sampler.top_k, None)
    if sampler.typical_p >= 1.0 and np.isfinite(largest := row.max()):
        mass = float(np.exp(row - largest).sum(dtype=np.float64))
        if sampler.min_p > 0:
            ids = np.flatnonzero(row >= largest + np.float32(np.log(sampler.min_p)))
        else:
            ids = _largest(row, min(len(row), N_CHUNKS // 4))
        survey = _sorted(row, ids, len(ids), mass)
        share = _weights(survey.logits[None]).sum() / mass
        is_enough = sampler.min_p > 0 or (sampler.top_p < 1.0 and share >= sampler.top_p)
        if is_enough and len(survey.ids) >= sampler.min_keep:
            return survey
    return _sorted(row, np.arange(len(row)), len(row), None)


def _largest(row: Floats, k: int) -> Ids:
    """Ids of the k largest logits, and perhaps of more."""
    if k <= N_CHUNKS // 4 and len(row) >= 4 * N_CHUNKS:
        return _above_chunk_maxima(row, k)
    return np.argpartition(row, len(row) - k)[len(row) - k :]


def _above_chunk_maxima(row: Floats, k: int) -> Ids:
    """Ids of a few more than the k largest.

    The k-th largest of the maxima of disjoint chunks has k logits at or above it, so it bounds the k-th largest of
    the row from below. Chunks are strided: one pass of contiguous maxima.
    """
    n_body = len(row) - len(row) % N_CHUNKS
    maxima = row[:n_body].reshape(-1, N_CHUNKS).max(axis=0)
    n_tail = len(row) - n_body
    np.maximum(maxima[:n_tail], row[n_body:], out=maxima[:n_tail])
    bound = np.partition(maxima, N_CHUNKS - k)[N_CHUNKS - k]
    return np.flatnonzero(row >= bound)


def _sorted(row: Floats, ids: Ids, k: int, mass: float | None) -> _Survey:
    """The k largest of `ids`; of equal logits the smaller id comes first."""
    logits = row[ids]
    order = np.argsort(-logits, kind="stable")[:k]
    ids, logits = ids[order], logits[order]
    is_possible = logits > -np.inf
    if not is_possible.all():
        ids, logits = ids[is_possible], logits[is_possible]
    return _Survey(ids, logits, np.nan if mass is None else mass)


def _pack(surveys: Sequence[_Survey]) -> tuple[Ids, Floats, NDArray[np.float64]]:
    width = max(1, *(len(survey.ids) for survey in surveys))
    ids = np.zeros((len(surveys), width), dtype=np.int64)
    logits = np.full((len(surveys), width), -np.inf, dtype=np.float32)
    for index, survey in enumerate(surveys):
        ids[index, : len(survey.ids)] = survey.ids
        logits[index, : len(survey.ids)] = survey.logits
    return ids, logits, np.array([survey.mass for survey in surveys])


def _weights(logits: Floats) -> Floats:
    """exp(logit - largest); a row without candidates is all zero."""
    with np.errstate(invalid="ignore"):
        weights: Floats = np.exp(logits - logits[:, :1])
    weights[~np.isfinite(logits)] = 0
    return weights


def _keep_typical(ids: Ids, logits: Floats, sampler: Sampler) -> None:
    """Locally typical sampling (arXiv 2202.00666) on one row, in place."""
    n = int((logits > -np.inf).sum())
    if n == 0:
        return
    weights = np.exp(logits[:n] - logits[0])
    shares = weights / weights.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -np.log(shares)
        entropy = np.where(shares > 0, shares * surprise, 0).sum()
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    is_enough = np.cumsum(shares[order]) > sampler.typical_p
    is_enough[: max(0, sampler.min_keep - 1)] = False
    n_kept = int(is_enough.argmax()) + 1 if is_enough.any() else n
    kept = np.sort(order[:n_kept])
    ids[:n_kept], logits[:n_kept] = ids[kept], logits[kept]
    logits[n_kept:] = -np.inf


def _n_top_p(logits: Floats, masses: NDArray[np.float64], samplers: Sequence[Sampler]) -> NDArray[np.int64]:
    """Fewest likeliest tokens that have a share of `top_p` together, but `min_keep`."""
    weights = _weights(logits)
    masses = np.where(np.isnan(masses), weights.sum(axis=1), masses)
    wanted = np.array([sampler.top_p for sampler in samplers])
    with np.errstate(invalid="ignore", divide="ignore"):
        is_enough = np.cumsum(weights, axis=1) / masses[:, None] >= wanted[:, None]
    at_least = np.array([max(1, sampler.min_keep) for sampler in samplers])
    is_enough &= np.arange(1, logits.shape[1] + 1) >= at_least[:, None]
    n_kept = np.where(is_enough.any(axis=1), is_enough.argmax(axis=1) + 1, logits.shape[1])
    kept: NDArray[np.int64] = np.where(wanted >= 1.0, logits.shape[1], n_kept)
    return kept


def _n_min_p(logits: Floats, samplers: Sequence[Sampler]) -> NDArray[np.int64]:
    """Tokens at least `min_p` times as likely as the likeliest, but `min_keep`."""
    with np.errstate(divide="ignore"):
        bounds = np.log(np.array([[sampler.min_p] for sampler in samplers], dtype=np.float32))
    at_least = np.array([max(1, sampler.min_keep) for sampler in samplers])
    kept: NDArray[np.int64] = np.maximum((logits >= logits[:, :1] + bounds).sum(axis=1), at_least)
    return kept


def _draw(found: Candidates, numbers: NDArray[np.float64]) -> Ids:
    """One of each row's candidates, by its weight: where the cumulative sum passes the row's number in [0, 1)."""
    sums = np.cumsum(_weights(found.logits), axis=1, dtype=np.float64)
    totals = sums[:, -1]
    picks = (sums <= (numbers * totals)[:, None]).sum(axis=1)
    picks = np.minimum(picks, np.maximum((found.logits > -np.inf).sum(axis=1) - 1, 0))
    tokens = found.ids[np.arange(len(picks)), picks]
    drawn: Ids = np.where(totals > 0, tokens, NO_TOKEN)
    return drawn


def _draw_from_all(row: Floats, temperature: float, number: float) -> int:
    """The same over a whole row in the order of its ids: nothing is cut, so nothing need be sorted."""
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.cumsum(np.exp((row - row.max()) / np.float32(temperature)), dtype=np.float64)
    if not sums[-1] > 0:
        return NO_TOKEN
    return int(min(np.searchsorted(sums, number * sums[-1], side="right"), len(row) - 1))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """A number in [0, 1) for each (seed, position): SplitMix64 (Steele, Lea, Flood 2014), read at a counter."""
    seed = np.array(seeds, dtype=np.uint64)
    position = np.array(positions, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(seed + _GOLDEN) + (position + np.uint64(1)) * _GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
