"""DRY ("don't repeat yourself"): makes a token less likely that would go on repeating a phrase, the longer the more.

Formula, bounds and breakers are those of llama.cpp's `llama-sampler.cpp`, which has them from p-e-w
(https://github.com/oobabooga/text-generation-webui/pull/5677). It matches the whole window anew for each token; here
the length of the repetition that ends at each place is carried on from token to token.

Knows a window of tokens; nothing of chains or of text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker.engine.sampling.penalties import bounded
from worker.engine.sampling.pool import Floats, Ids

LOG_OF_LARGEST = 88.7228391
"""Natural logarithm of the largest 32-bit float, which bounds the exponent."""
FLATTEST_BASE = 1.000001
"""Below, an exponent is not bounded: nothing overflows."""
MOST_REPLAYED = 1000
"""Length that a repetition in the prompt is measured to: only hostile ones are longer, and penalties of usual bases
are bounded long before."""


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


class Breakers(NamedTuple):
    """What ends a phrase: by the token that it begins with, the tokens that may follow. None following means that the
    token is a breaker by itself."""

    tails: Mapping[int, tuple[tuple[int, ...], ...]]
    longest: int
    """Tokens of the longest tail."""

    def is_one(self, token: int) -> bool:
        return () in self.tails.get(token, ())


@lru_cache(maxsize=16)
def breakers_of(sequences: tuple[tuple[int, ...], ...]) -> Breakers:
    """Of sequences of ids. A line break alone makes thousands, and most requests have the same."""
    tails: dict[int, list[tuple[int, ...]]] = {}
    for head, *tail in sequences:
        tails.setdefault(head, []).append(tuple(tail))
    longest = max((len(sequence) - 1 for sequence in sequences), default=0)
    return Breakers({head: tuple(each) for head, each in tails.items()}, longest)


class Dry:
    """Of the last `size` tokens."""

    def __init__(self, repetition: Repetition, size: int, breakers: Breakers) -> None:
        self._repetition = repetition
        self._size = size
        self._breakers = breakers
        self._n = 0
        self._tokens = np.zeros(256, dtype=np.int32)
        self._lengths = np.zeros(256, dtype=np.int32)
        """Behind how many tokens up to each place but the last the same stands as behind the last."""
        self._break = _Break(-1, 0)

    def replay(self, tokens: Sequence[int]) -> None:
        """What was there before; to be called once."""
        last = tokens[-self._size :]
        self._n = len(last)
        self._tokens = np.array(last, dtype=np.int32)
        self._lengths = _repeated(self._tokens)
        self._look_for_break(0)

    def push(self, token: int) -> None:
        n = self._n
        if n == len(self._tokens):
            n = self._make_room()
        if n:
            lengths = self._lengths[:n]
            lengths[1:] = lengths[:-1] + 1
            lengths[0] = 1
            lengths *= self._tokens[:n] == token
        self._tokens[n] = token
        self._n = n + 1
        self._look_for_break(n - self._breakers.longest)

    def touched(self) -> Ids:
        """Tokens whose logits change."""
        return self._repetitions()[0]

    def reshape(self, ids: Ids, logits: Floats) -> Floats:
        """The new logits of some that are touched."""
        touched, lengths = self._repetitions()
        costs = self._repetition.costs(lengths[np.searchsorted(touched, ids)])
        return bounded(logits - costs, logits)

    def _repetitions(self) -> tuple[Ids, Ids]:
        """Tokens that would go on with a repetition, in rising order, and the length of the longest for each."""
        start, last = max(0, self._n - self._size), self._n - 1
        least, most = self._repetition.allowed_length, self._n - start
        if self._break.head >= start:
            most = last - self._break.head - self._break.n_behind
        if self._n - start <= least or most < least:
            return _NONE, _NONE
        lengths = np.minimum(self._lengths[start:last], np.minimum(np.arange(1, last - start + 1), most))
        is_long = lengths >= least
        next_tokens = self._tokens[start + 1 : last + 1][is_long]
        tokens, places = np.unique(next_tokens, return_inverse=True)
        longest = np.zeros(len(tokens), dtype=np.int64)
        np.maximum.at(longest, places, lengths[is_long])
        is_meant = np.array([not self._breakers.is_one(token) for token in tokens.tolist()], dtype=bool)
        return tokens[is_meant].astype(np.int64), longest[is_meant]

    def _look_for_break(self, start: int) -> None:
        """Of the breakers that are whole, the one that begins last; before `start` there is no new one."""
        for head in range(self._n - 1, max(start, self._break.head, 0) - 1, -1):
            tails = self._breakers.tails.get(int(self._tokens[head]), ())
            behind = tuple(self._tokens[head + 1 : self._n].tolist()) if any(tails) else ()
            whole = [len(tail) for tail in tails if tail == behind[: len(tail)]]
            if whole:
                self._break = _Break(head, max(whole))
                return

    def _make_room(self) -> int:
        """Forget what left the window, or grow. Returns how many tokens are left."""
        n_gone = max(0, self._n - self._size) if self._n >= 2 * self._size else 0
        n_left = self._n - n_gone
        room = np.zeros(max(n_left, 128), dtype=np.int32)
        self._tokens = np.concatenate((self._tokens[n_gone : self._n], room))
        self._lengths = np.concatenate((self._lengths[n_gone : self._n], room))
        self._break = _Break(max(self._break.head - n_gone, -1), self._break.n_behind)
        self._n = n_left
        return n_left


class _Break(NamedTuple):
    """Where a breaker begins, and how many tokens of it follow there."""

    head: int
    n_behind: int


_NONE = np.zeros(0, dtype=np.int64)


def _repeated(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """For each place, how many tokens up to it are the same as up to the last one."""
    lengths = np.zeros(len(tokens), dtype=np.int32)
    alive = np.arange(len(tokens) - 1)
    depth = 0
    while len(alive) and depth < MOST_REPLAYED:
        alive = alive[tokens[alive - depth] == tokens[len(tokens) - 1 - depth]]
        lengths[alive] += 1
        depth += 1
        alive = alive[alive >= depth]
    return lengths
