"""Where some tokens repeat what they end in, and where a breaker last stood in them: what DRY must know of a prompt.

Found in time that is linear in the tokens, whatever they are, and once for all choices of a prompt, where nobody waits:
a hundred thousand equal tokens take tens of milliseconds. Knows ids; nothing of what a repetition costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from worker.engine.sampling.breakers import Break, Breakers


@dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """Shared by sequences, and never written to."""

    recent: NDArray[np.int32]
    """(n,), the tokens, newest first."""
    lengths: NDArray[np.int32]
    """(n,), by how far back, less one: for how many tokens up to there the same stands as up to the newest."""
    last_break: Break | None

    @classmethod
    def of(cls, tokens: Sequence[int], breakers: Breakers) -> Self:
        recent = np.array(tokens, dtype=np.int32)[::-1]
        backwards = recent.tolist()
        lengths = np.zeros(len(recent), dtype=np.int32)
        starts = np.flatnonzero(recent[1:] == recent[:1]) + 1
        lengths[starts - 1] = common_prefixes(backwards, starts.tolist())
        return cls(recent, lengths, breakers.last(backwards, breakers.heads(recent)))


def common_prefixes(tokens: Sequence[int], starts: Iterable[int]) -> list[int]:
    """How many tokens from each start on are the same as from the beginning on; `starts` are all places but 0, rising,
    where the first token stands. Compares no more than two tokens for each of `tokens`.

    The Z function: Gusfield, Algorithms on Strings, Trees, and Sequences, 1997, section 1.4.
    """
    n_tokens = len(tokens)
    lengths = [0] * n_tokens
    found = []
    begin = end = 0  # of the stretch that reaches furthest of those that are the same as the beginning
    for start in starts:
        length = lengths[start - begin] if start < end else 0
        if start + length >= end:
            end = max(start, end)
            while end < n_tokens and tokens[end - start] == tokens[end]:
                end += 1
            begin, length = start, end - start
        lengths[start] = length
        found.append(length)
    return found
