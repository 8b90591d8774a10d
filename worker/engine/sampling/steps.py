"""The steps of a chain: each narrows the candidates of some rows, or changes how likely they are.

The meaning of each is that of llama.cpp's `llama-sampler.cpp`, of tail-free sampling that of llama.cpp in May 2024.
Where llama.cpp counts candidates, banned ones are counted, too; they are never chosen for all that. Sums are of
64 bits, so that a row which is cut within the last bits of a bound may keep one candidate more or less.

Know candidates and what each row is to go by; nothing of how they came to be, or of drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shared.jobs import SamplerKind
from worker.engine.sampling.noise import Noise, Stream
from worker.engine.sampling.parameters import COLDEST, LARGEST, Parameters
from worker.engine.sampling.pool import Floats, Ids, Pool
from worker.engine.sampling.sampler import Reshaping, Sampler

Numbers = NDArray[np.float64]

LEAST_CURVATURE = 1e-6
"""Of all of a row together: with less, its probabilities lie on a line, which has no tail."""


def take_row_step(kind: SamplerKind, row: Floats, sampler: Sampler) -> None:
    """One of the steps that a whole row goes through, in place."""
    match kind:
        case SamplerKind.TEMPERATURE:
            row /= np.float32(sampler.parameters.temperature)
        case SamplerKind.TOP_N_SIGMA:
            _drop_far(row[None], np.array([sampler.parameters.top_n_sigma]))
        case _:
            step = sampler.reshaping[kind]
            ids = step.touched()
            if len(ids):
                row[ids] = step.reshape(ids, row[ids])


def take_step(kind: SamplerKind, pool: Pool, samplers: Sequence[Sampler], noise: Noise) -> None:
    """One of the others, for all rows of a pool."""
    numbers = [sampler.parameters for sampler in samplers]
    match kind:
        case SamplerKind.PENALTIES | SamplerKind.DRY:
            _reshape(pool, [sampler.reshaping[kind] for sampler in samplers])
        case SamplerKind.XTC:
            _exclude(pool, numbers, noise.uniforms(Stream.EXCLUSION))
        case _:
            _STEPS[kind](pool, numbers)
    pool.masses = None  # whatever was not here is gone
    pool.trim()


def _top_k(pool: Pool, numbers: Sequence[Parameters]) -> None:
    pool.cut(np.array([each.top_k for each in numbers]))


def _top_p(pool: Pool, numbers: Sequence[Parameters]) -> None:
    """The fewest that have a share of `top_p` together."""
    sums = pool.weights().cumsum(axis=1, dtype=np.float64)
    masses = sums[:, -1:] if pool.masses is None else pool.masses[:, None]
    wanted = np.array([[each.top_p] for each in numbers]) * masses
    is_enough = sums >= wanted
    n_enough = np.where(is_enough.any(axis=1), is_enough.argmax(axis=1) + 1, pool.sizes)
    pool.cut(np.maximum(n_enough, _at_least(numbers)))


def _min_p(pool: Pool, numbers: Sequence[Parameters]) -> None:
    """Those that are `min_p` times as likely as the likeliest."""
    bounds = np.log(np.array([[each.min_p] for each in numbers], dtype=np.float32))
    pool.cut(np.maximum((pool.logits >= pool.logits[:, :1] + bounds).sum(axis=1), _at_least(numbers)))


def _top_n_sigma(pool: Pool, numbers: Sequence[Parameters]) -> None:
    _drop_far(pool.logits, np.array([each.top_n_sigma for each in numbers]))


def _drop_far(logits: Floats, n_sigmas: Numbers) -> None:
    """Drop what is more than so many standard deviations below the largest (arXiv 2411.07641), in place."""
    is_there = logits > -np.inf
    n = np.maximum(is_there.sum(axis=1), 1)
    mean = np.where(is_there, logits, 0).sum(axis=1, dtype=np.float64) / n
    squares = np.where(is_there, logits - mean[:, None], 0) ** 2
    bounds = logits.max(axis=1) - n_sigmas * np.sqrt(squares.sum(axis=1) / n)
    logits[logits < bounds[:, None]] = -np.inf


def _typical(pool: Pool, numbers: Sequence[Parameters]) -> None:
    """Those whose surprise is nearest to what is expected (arXiv 2202.00666): as many as share `typical_p`."""
    for row, (each, shares, n) in enumerate(zip(numbers, pool.shares(), pool.counts().tolist(), strict=True)):
        surprise = -np.log(np.maximum(shares[:n], np.finfo(float).tiny))
        order = np.argsort(np.abs(surprise - (shares[:n] * surprise).sum()), kind="stable")
        is_enough = shares[order].cumsum() > each.typical_p
        n_kept = int(is_enough.argmax()) + 1 if is_enough.any() else n
        n_kept = max(n_kept, each.min_keep)
        pool.keep(row, np.sort(order[:n_kept]))
        pool.sizes[row] = min(n_kept, pool.sizes[row])


def _tail_free(pool: Pool, numbers: Sequence[Parameters]) -> None:
    """Those before the tail, where the curve of probabilities has bent by a share of `tfs_z`
    (https://www.trentonbricken.com/Tail-Free-Sampling)."""
    for row, (each, shares) in enumerate(zip(numbers, pool.shares(), strict=True)):
        size = int(pool.sizes[row])
        if size > 2:
            bends = np.abs(np.diff(np.append(shares, (0.0, 0.0))[:size], n=2))
            if (total := bends.sum()) > LEAST_CURVATURE:
                is_tail = bends.cumsum() > each.tfs_z * total
            else:
                is_tail = np.arange(1, len(bends) + 1) > each.tfs_z * (size - 2)
            is_tail[: max(each.min_keep, 1)] = False
            n_kept = int(is_tail.argmax()) if is_tail.any() else size
            pool.sizes[row] = n_kept
    pool.cut(pool.sizes)


def _exclude(pool: Pool, numbers: Sequence[Parameters], chances: Numbers) -> None:
    """XTC, "exclude top choices" (https://github.com/oobabooga/text-generation-webui/pull/6335): by chance, of those
    that have a share of `xtc_threshold` only the least likely one is left."""
    shares = pool.shares()
    n_likely = ((shares >= np.array([[each.xtc_threshold] for each in numbers])) & (shares > 0)).sum(axis=1)
    n_gone = np.maximum(n_likely - 1, 0)
    is_met = chances <= np.array([each.xtc_probability for each in numbers])
    n_gone[~is_met | (pool.sizes - n_gone < np.array([each.min_keep for each in numbers]))] = 0
    for row in np.flatnonzero(n_gone).tolist():
        pool.keep(row, np.arange(n_gone[row], pool.logits.shape[1]))
    pool.sizes -= n_gone


def _scale(pool: Pool, numbers: Sequence[Parameters]) -> None:
    """The temperature, or one between two bounds by how even the probabilities are (dynamic temperature)."""
    temperatures = np.array([each.temperature for each in numbers])
    ranges = np.array([each.dynatemp_range for each in numbers])
    if ranges.any():
        dynamic = _dynamic_temperatures(
            pool, temperatures, ranges, np.array([each.dynatemp_exponent for each in numbers])
        )
        temperatures = np.where(ranges > 0, dynamic, temperatures)
    is_cold = temperatures <= COLDEST
    pool.logits[is_cold, 1:] = -np.inf
    pool.logits /= np.where(is_cold, 1.0, temperatures)[:, None].astype(np.float32)


def _dynamic_temperatures(pool: Pool, temperatures: Numbers, ranges: Numbers, exponents: Numbers) -> Numbers:
    shares = pool.shares()
    entropies = -(shares * np.log(np.maximum(shares, np.finfo(float).tiny))).sum(axis=1)
    low, high = np.maximum(temperatures - ranges, 0), temperatures + ranges
    evenness = np.clip(entropies / np.log(pool.sizes), 0, 1) ** exponents
    dynamic = low + (high - low) * evenness
    dynamic = np.clip(np.where(np.isnan(dynamic), high, dynamic), 0, LARGEST)
    return np.where(pool.sizes > 1, dynamic, 1.0)


def _reshape(pool: Pool, steps: Sequence[Reshaping]) -> None:
    """Penalties, where they come after a step that narrows."""
    for row, step in enumerate(steps):
        columns = np.flatnonzero(np.isin(pool.ids[row], step.touched()))
        pool.logits[row, columns] = step.reshape(pool.ids[row, columns], pool.logits[row, columns])
    pool.sort()


def _at_least(numbers: Sequence[Parameters]) -> Ids:
    return np.array([max(each.min_keep, 1) for each in numbers])


_STEPS: dict[SamplerKind, Callable[[Pool, Sequence[Parameters]], None]] = {
    SamplerKind.TOP_N_SIGMA: _top_n_sigma,
    SamplerKind.TOP_K: _top_k,
    SamplerKind.TYPICAL_P: _typical,
    SamplerKind.TOP_P: _top_p,
    SamplerKind.MIN_P: _min_p,
    SamplerKind.TEMPERATURE: _scale,
    SamplerKind.TAIL_FREE: _tail_free,
}
