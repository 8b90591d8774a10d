"""Chance, read at a counter: a draw depends on the seed, on the token's position and on the token, on nothing else.

So the same text comes out in any slot, in any batch and after a restart. A token is drawn by adding to each logit a
noise of its own and taking the largest (Gumbel, 1954): two logits that another batch shape brings out a rounding apart
change the text only where their noisy sums are that close, and nothing has to be sorted for it.

Knows seeds, positions and ids; nothing of samplers.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from worker.engine.sampling.pool import NO_TOKEN, Floats, Ids

Numbers = NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Stream(IntEnum):
    """What a number is for: each use has numbers of its own."""

    TOKEN = 1
    EXCLUSION = 2


class Noise:
    """Of some rows, one for each (seed, position)."""

    __slots__ = ("_keys",)

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self._keys = keys

    @classmethod
    def at(cls, seeds: Sequence[int], positions: Sequence[int]) -> Self:
        """SplitMix64 (Steele, Lea, Flood 2014) of the seed, then of the position."""
        seed, position = np.array(seeds, dtype=np.uint64), np.array(positions, dtype=np.uint64)
        return cls(_mix(_mix(seed + _GOLDEN) + (position + np.uint64(1)) * _GOLDEN))

    def of(self, rows: Sequence[int]) -> Noise:
        return Noise(self._keys[list(rows)])

    def uniforms(self, stream: Stream) -> Numbers:
        """A number in [0, 1) for each row."""
        return (self._stream(stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def choose(self, ids: Ids, logits: Floats) -> Ids:
        """The column of one candidate in each row of (rows, n), by its weight exp(logit); NO_TOKEN where there is
        none."""
        noisy = logits + _gumbel(_hash(ids, self._stream(Stream.TOKEN)[:, None]))
        columns = noisy.argmax(axis=1)
        is_chosen = np.isfinite(noisy[np.arange(len(columns)), columns])
        chosen: Ids = np.where(is_chosen, columns, NO_TOKEN)
        return chosen

    def choose_from_all(self, index: int, row: Floats) -> int:
        """The same token from all of a row, whose ids are its columns."""
        likeliest = row.argmax()
        if not np.isfinite(row[likeliest]):
            return NO_TOKEN
        key = self._stream(Stream.TOKEN)[index]
        hashes = _hash(np.arange(len(row), dtype=np.uint32), key)
        # An exponential number is never less than the uniform one that it is made of, so whose uniform number is too
        # large need not be looked at: that spares nearly all of the logarithms.
        # Logits are taken as distances to the largest, since a large one leaves no digits for the noise.
        lead = np.float32(_gumbel(hashes[likeliest]))
        bounds = np.exp(row - row[likeliest] - lead) * np.float32(1.001 * 2**32)
        rivals = np.flatnonzero(hashes <= bounds)
        return int(rivals[(row[rivals] + _gumbel(hashes[rivals])).argmax()])

    def _stream(self, stream: Stream) -> NDArray[np.uint64]:
        return _mix(self._keys ^ np.uint64(stream))


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _hash(ids: NDArray[np.integer], key: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint32]:
    """32 bits for each id: the mixer `lowbias32` (Wellons 2018) with half of the key before each multiplication."""
    high, low = (key >> np.uint64(32)).astype(np.uint32), key.astype(np.uint32)
    value = ids.astype(np.uint32) * np.uint32(0x9E3779B1)
    value += low
    value ^= value >> np.uint32(16)
    value *= np.uint32(0x7FEB352D)
    value ^= high
    value ^= value >> np.uint32(15)
    value *= np.uint32(0x846CA68B)
    value ^= value >> np.uint32(16)
    return value


def _gumbel(hashes: NDArray[np.uint32]) -> Numbers:
    """Minus the logarithm of an exponential number; precise where it is large, which is where it wins."""
    gumbel: Numbers = -np.log(-np.log1p(-(hashes + 0.5) * 2.0**-32))
    return gumbel
