"""Candidates for the next token of some rows, likeliest first, and how a row of logits becomes some.

Most of a row cannot survive the first step of its chain, and is never sorted: `gather` takes what that step may keep,
and says what it must know of the rest.

Knows logits and ids; nothing of what the steps after the first do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

NO_TOKEN = -1
"""In a row where nothing can be chosen: every token is banned, or the logits are not numbers."""

N_CHUNKS = 1024
"""Chunks of a row, whose maxima bound its k-th largest logit from below."""
MOST_BY_CHUNKS = N_CHUNKS // 4
"""Largest k that is looked for so; for more the bound says little."""


@dataclass(slots=True)
class Pool:
    """Candidates of some rows. Of equally likely ones the smaller id comes first."""

    ids: Ids
    """(rows, n)"""
    logits: Floats
    """(rows, n), falling; -inf where there is no candidate."""
    sizes: Ids
    """(rows,), as llama.cpp counts candidates: one that is banned is still one."""
    masses: NDArray[np.float64] | None = None
    """(rows,), sums of exp(logit - largest) over all candidates, while only the likeliest are here."""

    @classmethod
    def of(cls, rows: Sequence[Ranked], n_vocab: int) -> Pool:
        """Of one or more rows, of any lengths."""
        width = max(1, *(len(row.ids) for row in rows))
        ids = np.zeros((len(rows), width), dtype=np.int64)
        logits = np.full((len(rows), width), -np.inf, dtype=np.float32)
        for index, row in enumerate(rows):
            ids[index, : len(row.ids)], logits[index, : len(row.ids)] = row.ids, row.logits
        return cls(ids, logits, np.full(len(rows), n_vocab))

    def counts(self) -> Ids:
        """(rows,), of candidates that can be chosen."""
        counts: Ids = (self.logits > -np.inf).sum(axis=1)
        return counts

    def cut(self, n_kept: NDArray[np.integer]) -> None:
        """Keep so many of the likeliest in each row."""
        self.sizes = np.minimum(self.sizes, n_kept)
        self.logits[np.arange(self.logits.shape[1]) >= self.sizes[:, None]] = -np.inf

    def trim(self) -> None:
        """Forget columns that no row needs any more."""
        width = max(1, int(self.sizes.max()))
        if width < self.logits.shape[1]:
            self.ids, self.logits = self.ids[:, :width], self.logits[:, :width]

    def keep(self, row: int, columns: Ids) -> None:
        """Keep these of a row, in this order."""
        self.put(row, columns, self.logits[row, columns])

    def put(self, row: int, columns: Ids, logits: Floats) -> None:
        """The same, with other logits."""
        n_kept = len(columns)
        self.ids[row, :n_kept], self.logits[row, :n_kept] = self.ids[row, columns], logits
        self.logits[row, n_kept:] = -np.inf

    def sort(self) -> None:
        """Put in order what a step changed."""
        self.ids, self.logits = ranked(self.ids, self.logits)

    def weights(self) -> Floats:
        """(rows, n), exp(logit - largest); a row without candidates is all zero."""
        weights: Floats = np.exp(self.logits - self.logits[:, :1])
        weights[self.logits == -np.inf] = 0
        return weights

    def shares(self) -> NDArray[np.float64]:
        """(rows, n), probabilities; a row without candidates is all zero."""
        weights = self.weights().astype(np.float64)
        shares: NDArray[np.float64] = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        return shares


class Ranked(NamedTuple):
    """The largest logits of one row, in falling order, and their ids."""

    ids: Ids
    logits: Floats


def ranked(ids: Ids, logits: Floats) -> tuple[Ids, Floats]:
    """Both (rows, n) by falling logits, of equal ones by rising id."""
    bits = (logits + np.float32(0)).view(np.uint32)  # adding nothing makes one zero of two
    falling = np.where(bits >> np.uint32(31), bits, ~bits & np.uint32(0x7FFFFFFF))
    keys = (falling.astype(np.uint64) << np.uint64(32)) | ids.astype(np.uint64)
    keys.sort(axis=1)
    falling = (keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(falling >> np.uint32(31), falling, ~falling & np.uint32(0x7FFFFFFF))
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64), bits.view(np.float32)


def rank(row: Floats, ids: Ids) -> Ranked:
    """Those of a row that can be chosen at all; none when the largest logit is no number."""
    ids = ids[row[ids] > -np.inf]
    if not len(ids) or not np.isfinite(row.max()):
        return Ranked(ids[:0], row[:0])
    found, logits = ranked(ids[None], row[ids][None])
    return Ranked(found[0], logits[0])


def whole(row: Floats) -> Ranked:
    """All of a row."""
    return rank(row, np.arange(len(row)))


def likeliest(row: Floats, k: int) -> Ranked:
    """The k largest of a row, or all that there are."""
    if can_chunk(len(row), k):
        found = by_chunks(row[None], [0], [k])
        n_found = int((found.logits > -np.inf).sum())
        return Ranked(found.ids[0, :n_found], found.logits[0, :n_found])
    if k >= len(row):
        return whole(row)
    bound = np.partition(row, len(row) - k)[len(row) - k]
    found_, logits = rank(row, np.flatnonzero(row >= bound))
    return Ranked(found_[:k], logits[:k])


def can_chunk(n_vocab: int, k: int) -> bool:
    return k <= MOST_BY_CHUNKS and n_vocab >= 4 * N_CHUNKS


def by_chunks(logits: Floats, rows: Sequence[int], ks: Sequence[int]) -> Pool:
    """The k likeliest of each of these rows; `can_chunk` of all.

    The k-th largest of the maxima of disjoint chunks has k logits at or above it, so it bounds the k-th largest of
    the row from below, and only chunks whose maximum reaches it need be looked into. Chunks are strided: chunk c has
    the ids c, c + 1024, ..., so that the maxima are one pass over contiguous memory.
    """
    n_vocab, k = logits.shape[1], max(ks)
    maxima = _chunk_maxima(logits, rows)
    bounds = np.partition(maxima, N_CHUNKS - k, axis=1)[:, N_CHUNKS - k]
    bounds = np.maximum(bounds, np.finfo(np.float32).min)
    bounds[~np.isfinite(maxima.max(axis=1))] = np.nan  # which nothing reaches
    found = np.flatnonzero(maxima >= bounds[:, None])
    found_rows, chunks = np.divmod(found, N_CHUNKS)
    blocks = np.arange(0, n_vocab, N_CHUNKS)
    starts = np.array(rows)[found_rows] * n_vocab + chunks
    values = logits.reshape(-1).take(blocks[:, None] + starts, mode="clip")
    values[-1, chunks + blocks[-1] >= n_vocab] = -np.inf  # the last ids of some chunks are beyond the row
    block, at = np.divmod(np.flatnonzero(values >= bounds[found_rows]), len(chunks))
    return _packed(found_rows[at], chunks[at] + blocks[block], values[block, at], np.array(ks), n_vocab)


def _chunk_maxima(logits: Floats, rows: Sequence[int]) -> Floats:
    """(rows, N_CHUNKS)"""
    n_vocab = logits.shape[1]
    n_body = n_vocab - n_vocab % N_CHUNKS
    if len(rows) == len(logits):
        maxima: Floats = logits[:, :n_body].reshape(len(rows), -1, N_CHUNKS).max(axis=1)
    else:
        maxima = np.stack([logits[row, :n_body].reshape(-1, N_CHUNKS).max(axis=0) for row in rows])
    if n_body < n_vocab:
        tail = maxima[:, : n_vocab - n_body]
        np.maximum(tail, logits[list(rows), n_body:], out=tail)
    return maxima


def _packed(rows: Ids, ids: Ids, values: Floats, ks: Ids, n_vocab: int) -> Pool:
    """Of loose candidates, in any order: the k likeliest of each row."""
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    counts = np.bincount(rows, minlength=len(ks))
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    packed_ids = np.zeros((len(ks), max(1, int(counts.max()))), dtype=np.int64)
    packed = np.full(packed_ids.shape, -np.inf, dtype=np.float32)
    packed_ids[rows, columns], packed[rows, columns] = ids[order], values[order]
    packed_ids, packed = ranked(packed_ids, packed)
    pool = Pool(packed_ids, packed, np.full(len(ks), n_vocab))
    pool.cut(ks)
    pool.trim()
    return pool
