"""Where images stand among the tokens of a sequence, and what that means for positions and for cutting it.

An image takes a row of the cache for each of its tokens, like text. In most models a row is a position; where rows lie
in two dimensions (M-RoPE) an image takes fewer positions than it has rows, all of its rows have the first of them for
llama.cpp's cache, and no cut can go through it. Nor should one where its rows see each other: those are computed
together.

Pure.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """One image, or a slice of one."""

    start: int
    """Index of its first row."""
    n_rows: int
    n_positions: int
    is_whole: bool
    """The cache has all of it or nothing, once a decode is over that had to do with it."""

    @property
    def end(self) -> int:
        return self.start + self.n_rows


class Spans:
    """Those of one sequence. Falsy when there are none, which costs nothing."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        """In order; they do not overlap."""
        self._spans = tuple(spans)
        self._starts = [span.start for span in self._spans]
        self._gains = [0]
        """Rows that those before each image have beyond their positions, and all of them."""
        for span in self._spans:
            self._gains.append(self._gains[-1] + span.n_rows - span.n_positions)

    def __bool__(self) -> bool:
        return bool(self._spans)

    def at(self, index: int) -> Span | None:
        """The image whose row has this index."""
        before = bisect_right(self._starts, index)
        if before and index < self._spans[before - 1].end:
            return self._spans[before - 1]
        return None

    def n_alike(self, index: int) -> int:
        """How many tokens from this index on are of one kind: rows of one image, or text up to the next."""
        if (span := self.at(index)) is not None:
            return span.end - index
        after = bisect_right(self._starts, index)
        return self._starts[after] - index if after < len(self._starts) else sys.maxsize

    def position(self, n_tokens: int) -> int:
        """Of the next token behind so many; inside an image that is cut nowhere, that of its first row."""
        if (span := self.at(n_tokens)) is not None and span.is_whole:
            n_tokens = span.start
        return n_tokens - self._gains[bisect_right(self._starts, n_tokens - 1)]

    def floor(self, n_tokens: int) -> int:
        """The most of so many tokens that can be kept: all, or those before an image that would be cut."""
        span = self.at(n_tokens)
        return span.start if span is not None and span.is_whole else n_tokens


NO_SPANS = Spans()
