"""Makes tokens that came lately less likely: the penalties for repeating, for frequency and for presence.

Meaning and formula are those of llama.cpp's `llama-sampler.cpp`. Knows a window of tokens; nothing of chains.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from worker.engine.sampling.pool import Floats, Ids

LEAST_LOGIT, LARGEST_LOGIT = np.float32(-1e30), np.float32(1e30)
"""Bounds of a reshaped logit, so that no sum or quotient of them overflows; a ban stays minus infinity."""


class Rates(NamedTuple):
    """`repeat` divides a logit above zero and multiplies others; `frequency` is taken off for each time that a token
    came, `presence` once."""

    repeat: float
    frequency: float
    presence: float


NO_RATES = Rates(1.0, 0.0, 0.0)


class Penalties:
    """Of the last `size` tokens; `exempt` is a token that is never penalized."""

    def __init__(self, rates: Rates, size: int, exempt: int = -1) -> None:
        self._rates = rates
        self._size = size
        self._exempt = exempt
        self._last: collections.deque[int] = collections.deque()
        self._counts: dict[int, int] = {}

    def replay(self, tokens: Sequence[int]) -> None:
        self._last = collections.deque(tokens[-self._size :])
        self._counts = dict(collections.Counter(self._last))

    def push(self, token: int) -> None:
        self._last.append(token)
        self._counts[token] = self._counts.get(token, 0) + 1
        if len(self._last) > self._size:
            gone = self._last.popleft()
            self._counts[gone] -= 1
            if not self._counts[gone]:
                del self._counts[gone]

    def touched(self) -> Ids:
        """Tokens whose logits change."""
        ids: Ids = np.fromiter(self._counts.keys(), dtype=np.int64, count=len(self._counts))
        touched: Ids = ids[ids != self._exempt]
        return touched

    def reshape(self, ids: Ids, logits: Floats) -> Floats:
        """The new logits of some that are touched."""
        counts = np.array([self._counts[token] for token in ids.tolist()], dtype=np.float32)
        repeat, frequency, presence = self._rates
        scaled = np.where(logits <= 0, logits * np.float32(repeat), logits / np.float32(repeat))
        return bounded(scaled - counts * np.float32(frequency) - np.float32(presence), logits)


def bounded(reshaped: Floats, before: Floats) -> Floats:
    """What a step made of logits, with bans kept and nothing beyond the bounds."""
    kept: Floats = np.where(before > -np.inf, np.clip(reshaped, LEAST_LOGIT, LARGEST_LOGIT), before)
    return kept
