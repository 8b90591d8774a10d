"""DRY ("don't repeat yourself"): makes a token less likely that would go on repeating a phrase, the longer the more.

Formula, bounds and breakers are those of llama.cpp's `llama-sampler.cpp`, which has them from p-e-w
(https://github.com/oobabooga/text-generation-webui/pull/5677). It matches the whole window anew for each token; here
the lengths of repetitions are carried on from token to token, in a few passes over contiguous memory.

Knows a window of tokens; nothing of chains or of text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from worker.engine.sampling.breakers import Breakers
from worker.engine.sampling.penalties import bounded
from worker.engine.sampling.pool import Floats, Ids
from worker.engine.sampling.repeats import Repeats

LOG_OF_LARGEST = 88.7228391
"""Natural logarithm of the largest 32-bit float, which bounds the exponent."""
FLATTEST_BASE = 1.000001
"""Below, an exponent is not bounded: nothing overflows."""


class Repetition(NamedTuple):
    """`multiplier * base ** (length - allowed_length)` is what repetitions of the allowed length and longer cost."""

    multiplier: float
    base: float
    allowed_length: int

    def costs(self, lengths: Ids) -> Floats:
        exponents = lengths - self.allowed_length
        if self.base > FLATTEST_BASE:
            exponents = np.minimum(exponents, int(LOG_OF_LARGEST / math.log(self.base)))
        costs: Floats = (np.float32(self.multiplier) * np.power(self.base, exponents)).astype(np.float32)
        return costs


class Dry:
    """Of the last `size` tokens. The buffer of tokens is filled from its end, so that the newest comes first and what
    is known by distance stays in its place when a token is added."""

    def __init__(self, repetition: Repetition, size: int, breakers: Breakers) -> None:
        self._repetition = repetition
        self._size = size
        self._breakers = breakers
        self.restore(Repeats.of((), breakers))

    def replay(self, tokens: Sequence[int]) -> None:
        self.restore(Repeats.of(tokens[-self._size :], self._breakers))

    def restore(self, repeats: Repeats) -> None:
        """What is there before the first choice: the window's tokens, or more."""
        self._n = min(len(repeats.recent), self._size)
        """Tokens of the window."""
        room = np.zeros(max(self._n, 128), dtype=np.int32)
        self._tokens = np.concatenate((room, repeats.recent[: self._n]))
        self._newest = len(room)
        """Where the tokens begin."""
        self._lengths = np.concatenate((repeats.lengths[: self._n], room))
        """By distance from the newest, less one: for how many tokens up to there the same stands as up to the newest,
        in the window or before it."""
        self._break = repeats.last_break
        self._repetitions: tuple[Ids, Ids] | None = None

    def push(self, token: int) -> None:
        if not self._newest:
            self._make_room()
        n_before = min(self._n, self._size - 1)
        before = self._tokens[self._newest : self._newest + n_before]
        lengths = self._lengths[:n_before]
        lengths += 1
        lengths *= before == token
        self._newest -= 1
        self._tokens[self._newest] = token
        self._n = n_before + 1
        self._look_for_break()
        self._repetitions = None

    def touched(self) -> Ids:
        """Tokens whose logits change."""
        return self._found()[0]

    def reshape(self, ids: Ids, logits: Floats) -> Floats:
        """The new logits of some that are touched."""
        touched, lengths = self._found()
        costs = self._repetition.costs(lengths[np.searchsorted(touched, ids)])
        return bounded(logits - costs, logits)

    def _found(self) -> tuple[Ids, Ids]:
        """Tokens that would go on with a repetition, in rising order, and the length of the longest for each."""
        if self._repetitions is None:
            self._repetitions = self._find()
        return self._repetitions

    def _find(self) -> tuple[Ids, Ids]:
        least, most = self._repetition.allowed_length, self._n
        if self._break is not None and self._break.distance < self._n:
            most = self._break.distance - self._break.n_behind
        if self._n <= least or most < least:
            return _NONE, _NONE
        last = self._n - 1
        is_long = self._lengths[:last] >= least
        lengths = np.minimum(self._lengths[:last][is_long], np.int32(most))
        if self._n == self._size:  # some may have begun before the window
            np.minimum(lengths, (last - np.flatnonzero(is_long)).astype(np.int32), out=lengths)
        next_tokens = self._tokens[self._newest : self._newest + last][is_long]
        longest = np.full(int(next_tokens.max(initial=0)) + 1, -1, dtype=np.int32)
        np.maximum.at(longest, next_tokens, lengths)
        tokens: Ids = np.flatnonzero(longest >= max(least, 0)).astype(np.int64)
        tokens = tokens[~self._breakers.are_alone(tokens)]
        return tokens, longest[tokens].astype(np.int64)

    def _look_for_break(self) -> None:
        """The one there was is further back now, may have gone on, or another begins behind it."""
        furthest = min(self._breakers.longest, self._n - 1)
        if self._break is not None:
            self._break = self._break._replace(distance=self._break.distance + 1)
            furthest = min(furthest, self._break.distance)
        recent = self._tokens[self._newest : self._newest + furthest + 1].tolist()
        self._break = self._breakers.last(recent, range(furthest + 1)) or self._break

    def _make_room(self) -> None:
        """Forget what left the window, and grow."""
        room = np.zeros(max(self._n, 128), dtype=np.int32)
        self._tokens = np.concatenate((room, self._tokens[: self._n]))
        self._lengths = np.concatenate((self._lengths[: self._n], room))
        self._newest = len(room)


_NONE = np.zeros(0, dtype=np.int64)
