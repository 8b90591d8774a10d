"""One sequence in the cache: its tokens, how many of them are there, and who relies on it.

Plain state, written by `cells` alone but for `append`. Knows nothing of slots, sampling or text.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from worker.engine.adapters import Scales
from worker.engine.cells.spans import NO_SPANS, Spans

Ids = NDArray[np.int32]

NOWHERE = -1
"""The id of a sequence that has nothing in the cache."""
NO_SLOT = -1


class Standing(Enum):
    RUNNING = "running"  # it has a slot: nobody takes its cells
    PARKED = "parked"  # it waits for a slot; its cells stay while there is room
    IDLE = "idle"  # it ended; its cells stay for the sake of others, until they are needed


@dataclass(slots=True, eq=False)
class Resident:
    """Invariant: the first `n_cached` of `tokens` are what the cache has for it; none without an id."""

    tokens: Ids = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    """Room for the whole sequence; the first `n_tokens` are known."""
    n_tokens: int = 0
    is_patient: bool = False
    """It may be held up for others, so that only those who are patient too should wait for it."""
    may_reuse: bool = True
    """It takes what others have computed."""
    scales: Scales = ()
    """Of the adapters with which it is computed: of use to those alone that have the same."""
    spans: Spans = NO_SPANS
    """Which of the tokens are images."""
    seq_id: int = NOWHERE
    """In the cache."""
    standing: Standing = Standing.PARKED
    slot: int = NO_SLOT
    """Where it runs, or ran last."""
    n_cached: int = 0
    n_reused: int = 0
    """Of the cached: those that this sequence did not compute itself."""
    n_pure: int = sys.maxsize
    """Before this position each cell is what any sequence with the same beginning would compute; those behind have
    been moved, and still know of tokens that are gone."""
    leader: Resident | None = None
    """A running sequence that computes a prefix of this one right now: of its tokens as they are, so it is gone when
    they change but at their end."""
    awaited: Ids | None = None
    """The leader's tokens, by which it is known that they are still the same."""
    n_awaited: int = 0
    """The length of that prefix."""
    stamp: int = 0
    """When it was placed, parked or released: the least is the longest ago."""
    n_lent: int = 0
    """Length of the longest prefix that others have from it."""
    lent_stamp: int = 0
    """When it lent for the last time."""

    @property
    def known(self) -> Ids:
        return self.tokens[: self.n_tokens]

    @property
    def n_pending(self) -> int:
        """Known tokens that are not in the cache yet."""
        return self.n_tokens - self.n_cached

    @property
    def n_lendable(self) -> int:
        """Cached tokens whose cells would be any other's."""
        return min(self.n_cached, self.n_pure)

    @property
    def n_to_compute(self) -> int:
        """Pending ones that no leader computes for it."""
        return self.n_pending if self.leader is None else self.n_tokens - max(self.n_awaited, self.n_cached)

    def append(self, token: int) -> None:
        self.tokens[self.n_tokens] = token
        self.n_tokens += 1
