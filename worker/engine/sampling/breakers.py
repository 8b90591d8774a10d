"""What ends a phrase: a token, or several in a row.

The rule by which the last one is found is that of llama.cpp's `llama-sampler.cpp`. Knows ids; nothing of texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from worker.engine.sampling.pool import Ids


@dataclass(slots=True)
class _Beginning:
    """Tokens with which some breakers begin."""

    is_whole: bool = False
    """They are one by themselves."""
    longer: dict[int, _Beginning] = field(default_factory=dict)
    """By the token that comes next."""


class Break(NamedTuple):
    """Where a breaker stands."""

    distance: int
    """Tokens behind its first."""
    n_behind: int
    """How many of them are its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Breakers:
    """A line break alone makes thousands, and most requests have the same: shared, and never written to."""

    sequences: tuple[tuple[int, ...], ...]
    ids: Ids
    """(n,), all that are in one, rising, each once."""
    longest: int
    """Tokens of the longest behind its first."""
    _heads: Ids
    """What they begin with."""
    _alone: Ids
    """Those that are one by themselves."""
    _beginnings: dict[int, _Beginning]

    @classmethod
    def of(cls, sequences: Iterable[tuple[int, ...]]) -> Self:
        """Of ids in a row, none of them empty."""
        sequences = tuple(sequences)
        start = _Beginning()
        for sequence in sequences:
            beginning = start
            for token in sequence:
                beginning = beginning.longer.setdefault(token, _Beginning())
            beginning.is_whole = True
        return cls(
            sequences,
            _rising(token for sequence in sequences for token in sequence),
            max((len(sequence) - 1 for sequence in sequences), default=0),
            _rising(start.longer),
            _rising(head for head, beginning in start.longer.items() if beginning.is_whole),
            start.longer,
        )

    def are_alone(self, tokens: Ids) -> NDArray[np.bool_]:
        """(n,), which of some tokens are a breaker each."""
        return _are_among(tokens, self._alone)

    def heads(self, recent: NDArray[np.int32]) -> list[int]:
        """How far back those tokens are that a breaker can begin with. The newest comes first."""
        heads: list[int] = np.flatnonzero(_are_among(recent, self._heads)).tolist()
        return heads

    def last(self, recent: Sequence[int], heads: Iterable[int]) -> Break | None:
        """Of the whole ones that begin at `heads`, the first found, as long as it can be. The newest token comes first,
        in both. Reads no token more often than the longest breaker has tokens."""
        for head in heads:
            beginning = self._beginnings.get(recent[head])
            n_behind = -1
            n_read = 0
            while beginning is not None:
                if beginning.is_whole:
                    n_behind = n_read
                n_read += 1
                beginning = beginning.longer.get(recent[head - n_read]) if n_read <= head else None
            if n_behind >= 0:
                return Break(head, n_behind)
        return None


def _are_among(tokens: NDArray[np.integer], rising: Ids) -> NDArray[np.bool_]:
    return np.searchsorted(rising, tokens) < np.searchsorted(rising, tokens, side="right")


def _rising(tokens: Iterable[int]) -> Ids:
    return np.array(sorted(set(tokens)), dtype=np.int64)


NO_BREAKERS = Breakers.of(())
