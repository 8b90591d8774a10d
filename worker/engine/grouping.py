"""Self-extend: how tokens of a text that is longer than what its model was trained for share positions.

Of a group that is complete `n` tokens each have one position, so that the text takes an n-th of the positions that it
has tokens; those of the last group still have one each. Jin et al. 2024 (arXiv 2401.01325), with the arithmetic of
llama.cpp's server of May 2024 (`-gan`, `-gaw`).

Pure.
"""

from __future__ import annotations

import sys
from typing import NamedTuple


class Grouping(NamedTuple):
    """`width` is a multiple of `n`. With 1 each token has its own position."""

    n: int = 1
    width: int = sys.maxsize
    """Tokens of a group."""

    def position(self, n_tokens: int) -> int:
        """That of the next token, behind so many; also how many positions those have."""
        n_groups, n_last = divmod(n_tokens, self.width)
        return n_groups * (self.width // self.n) + n_last

    def n_open(self, n_tokens: int) -> int:
        """Tokens that the last group still takes, behind so many: no decode may go beyond."""
        return self.width - n_tokens % self.width

    def completed(self, n_tokens: int) -> int | None:
        """The first position of the group that is complete with so many tokens, and has one position for each token
        as yet; None when none is."""
        if self.n == 1 or n_tokens == 0 or n_tokens % self.width:
            return None
        return self.position(n_tokens - self.width)


UNGROUPED = Grouping()
