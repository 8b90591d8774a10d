"""Makes the candidates of rows: what the first step of their chain may keep, and little of what it cannot.

That a row is not sorted as a whole is most of what sampling gains. Knows rows of logits and which step comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shared.jobs import SamplerKind
from worker.engine.sampling.parameters import Parameters
from worker.engine.sampling.pool import (
    MOST_BY_CHUNKS,
    N_CHUNKS,
    Floats,
    Pool,
    Ranked,
    by_chunks,
    can_chunk,
    likeliest,
    rank,
    whole,
)
from worker.engine.sampling.sampler import Sampler

LEVELS_PER_LOGIT, N_LEVELS = 8, 256
"""Steps by which a row is looked through for a share, from the largest logit down; the last holds all the rest."""
_NONE = np.zeros(0, dtype=np.int64)


def gather(logits: Floats, rows: Sequence[int], samplers: Sequence[Sampler]) -> Iterator[tuple[list[int], Pool]]:
    """The pools of some rows of (rows, n_vocab) logits whose chains are equal, and which of the samplers' they are.

    A row with many candidates has a pool of its own: it would make all others as wide as itself.
    """
    n_vocab = logits.shape[1]
    steps = samplers[0].chain.pool_steps
    first = steps[0] if steps else None
    ks = [sampler.parameters.top_k for sampler in samplers]
    if first is SamplerKind.TOP_K and can_chunk(n_vocab, max(ks)):
        yield list(range(len(rows))), by_chunks(logits, rows, ks)
        return
    found = [_candidates(logits[row], first, sampler.parameters) for row, sampler in zip(rows, samplers, strict=True)]
    narrow = [index for index, each in enumerate(found) if len(each.ids) <= N_CHUNKS]
    wide = [[index] for index, each in enumerate(found) if len(each.ids) > N_CHUNKS]
    for indices in [narrow, *wide] if narrow else wide:
        pool = Pool.of([found[index] for index in indices], n_vocab)
        if first is SamplerKind.TOP_P:
            pool.masses = np.array([_mass(logits[rows[index]]) for index in indices])
        yield indices, pool


def _candidates(row: Floats, first: SamplerKind | None, numbers: Parameters) -> Ranked:
    """The likeliest of a row, and among them all that its first step keeps."""
    if not np.isfinite(row.max()):
        return rank(row, _NONE)
    match first:
        case SamplerKind.TOP_K:
            return likeliest(row, numbers.top_k)
        case SamplerKind.MIN_P:
            found = rank(row, np.flatnonzero(row >= row.max() + np.float32(np.log(numbers.min_p))))
            return found if len(found.ids) >= max(numbers.min_keep, 1) else likeliest(row, max(numbers.min_keep, 1))
        case SamplerKind.TOP_P:
            return _sharing(row, numbers.top_p, max(numbers.min_keep, 1))
    return whole(row)


def _sharing(row: Floats, share: float, at_least: int) -> Ranked:
    """As many of the likeliest as have a share together, and perhaps more."""
    wanted = share * _mass(row)
    if can_chunk(len(row), max(at_least, MOST_BY_CHUNKS)):
        found = likeliest(row, MOST_BY_CHUNKS)
        if len(found.ids) and np.exp(found.logits - found.logits[0]).sum(dtype=np.float64) > wanted:
            return found
    behind = row.max() - row
    # The row by steps of logits: those down to the one that brings the share.
    levels = np.minimum(behind * LEVELS_PER_LOGIT, N_LEVELS - 1).astype(np.int64)
    sums = np.bincount(levels, weights=np.exp(-behind), minlength=N_LEVELS).cumsum()
    counts = np.bincount(levels, minlength=N_LEVELS).cumsum()
    is_enough = (sums > wanted) & (counts >= at_least)
    return rank(row, np.flatnonzero(levels <= is_enough.argmax())) if is_enough.any() else whole(row)


def _mass(row: Floats) -> float:
    """Sum of exp(logit - largest)."""
    return float(np.exp(row - row.max()).sum(dtype=np.float64))
