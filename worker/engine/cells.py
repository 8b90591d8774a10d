"""Which tokens stand in the KV cache, slot by slot, and how a new prompt reuses them.

One sequence a slot; the slot's number is its sequence id. A sequence that ended stays resident until its slot is
needed. One that gave its slot up stands on a shelf until it gets another: an id of its own beyond those of the slots.
The cache is unified: a prefix that several share stands in it once, so lending or shelving one costs no cells.

Knows nothing of tasks, sampling or text.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from worker.engine.account import Account
from worker.engine.grouping import UNGROUPED, Grouping

Ids = NDArray[np.int32]

NOWHERE = -1
"""The id of a sequence that has neither slot nor shelf."""
MIN_SHARED = 16
"""Tokens below which it is not worth waiting for another sequence to compute them."""


class Cache(Protocol):
    """What cells need of a context."""

    def truncate(self, seq_id: int, n_kept: int) -> bool: ...

    def share(self, source: int, target: int, start: int, end: int) -> None: ...

    def shift(self, seq_id: int, start: int, end: int) -> None: ...

    def divide(self, seq_id: int, start: int, n: int) -> None: ...


@dataclass(slots=True, eq=False)
class Resident:
    """The sequence in one slot, or on one shelf. Invariant: the first `n_cached` of `tokens` are what the cache has
    for it."""

    slot: int
    """Its id in the cache."""
    tokens: Ids = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    """Room for the whole sequence; the first `n_tokens` are known."""
    n_tokens: int = 0
    n_cached: int = 0
    n_reused: int = 0
    """Of the cached: those that this sequence did not compute itself."""
    n_pure: int = sys.maxsize
    """Of the cached, those that were computed behind nothing but the tokens before them. Behind a shift they are not:
    they still mean what is gone, which no other sequence has had."""
    is_busy: bool = False
    is_patient: bool = False
    """It may be held up for others, so that only those who are patient too should wait for it."""
    leader: Resident | None = None
    """A busy sequence that computes a prefix of this one right now."""
    awaited: Ids | None = None
    """The leader's tokens, by which it is known that its slot has not gone to another."""
    n_awaited: int = 0
    """The length of the prefix."""
    stamp: int = 0
    """Grows with every use: the least is the least recently used."""

    @property
    def n_pending(self) -> int:
        """Known tokens that are not in the cache yet."""
        return self.n_tokens - self.n_cached

    @property
    def lendable(self) -> Ids:
        """Tokens whose cells would be any other's."""
        return self.tokens[: min(self.n_cached, self.n_pure)]

    def append(self, token: int) -> None:
        self.tokens[self.n_tokens] = token
        self.n_tokens += 1


class Cells:
    """All slots and shelves. For the decode thread, between decodes.

    `can_rewind` is False for models whose state cannot lose its end: there only a whole resident is reused.
    `can_shift` is False where what is in the cache cannot be moved to other positions. Where tokens share positions
    (`grouping`) all is one: nobody lends a part, and nothing of it is moved but whole groups, when they are complete.
    """

    def __init__(
        self,
        cache: Cache,
        n_slots: int,
        n_shelves: int = 0,
        *,
        n_cells: int,
        can_rewind: bool = True,
        can_shift: bool = True,
        grouping: Grouping = UNGROUPED,
    ) -> None:
        self._cache = cache
        self._account = Account(n_cells, n_slots + n_shelves)
        self._grouping = grouping
        self._can_rewind = can_rewind and grouping.n == 1
        self.can_shift = can_shift and grouping.n == 1
        self._stamps = itertools.count(1)
        self.residents = [Resident(slot) for slot in range(n_slots)]
        self._empty_shelves = list(range(n_slots, n_slots + n_shelves))
        self.shelved: list[Resident] = []

    @property
    def n_idle(self) -> int:
        return sum(not resident.is_busy for resident in self.residents)

    @property
    def n_free(self) -> int:
        """Cells that nobody has."""
        return self._account.n_free

    def is_private(self, resident: Resident, start: int, end: int) -> bool:
        """Whether no other has the cells at positions [start, end): only such may be moved or divided, since that
        befalls all who have them."""
        return self._account.n_private(resident.slot, start, end) == end - start

    def own(self, resident: Resident, start: int, end: int) -> bool:
        """Make the cells at positions [start, end) private if it is to be had for nothing: residents that are idle
        lose what they have of them, and what is behind. False when one that is busy or shelved has some."""
        sharing = [
            other
            for other in (*self.residents, *self.shelved)
            if other is not resident and self._account.have_common(resident.slot, other.slot, start, end)
        ]
        if any(other.is_busy or other in self.shelved for other in sharing):
            return False
        for other in sharing:
            self.cut(other, start)
        return True

    def computed(self, resident: Resident, n_tokens: int) -> None:
        """So many more of the known tokens are in the cache, in cells of their own."""
        self._account.take(resident.slot, n_tokens)
        resident.n_cached += n_tokens
        if (start := self._grouping.completed(resident.n_cached)) is not None:
            self._cache.divide(resident.slot, start, self._grouping.n)

    def position(self, resident: Resident) -> int:
        """Where its next token stands."""
        return self._grouping.position(resident.n_cached)

    def cut(self, resident: Resident, n_kept: int) -> None:
        """Let the cells from position `n_kept` on go: those tokens are pending again. All are where the model cannot
        keep a part."""
        resident.n_cached = self._trim(resident, n_kept)
        resident.n_reused = min(resident.n_reused, resident.n_cached)
        if resident.n_cached <= resident.n_pure:
            resident.n_pure = sys.maxsize

    def shift(self, resident: Resident, n_kept: int, n_gone: int) -> None:
        """Drop the `n_gone` tokens behind the first `n_kept`; what stands behind them moves up.

        Its cells move with it where they can, but never those that another has, who would not know: then they are
        dropped, and what stands in them is to be computed again, behind what is left.
        """
        end, n_tokens = n_kept + n_gone, resident.n_tokens
        if self.can_shift and resident.n_cached >= end and self.own(resident, end, resident.n_cached):
            self._cache.shift(resident.slot, n_kept, end)
            self._account.close_gap(resident.slot, n_kept, end)
            resident.n_cached -= n_gone
            resident.n_reused = min(resident.n_reused, n_kept)
            resident.n_pure = min(resident.n_pure, n_kept)
        else:
            self.cut(resident, min(n_kept, resident.n_cached))
        # In an array of its own: the old one is what others know that had the sequence's cells, or wait for them.
        tokens = resident.tokens.copy()
        tokens[n_kept : n_tokens - n_gone] = resident.tokens[end:n_tokens]
        resident.tokens, resident.n_tokens = tokens, n_tokens - n_gone

    def place(self, tokens: Ids, n_tokens: int, *, may_reuse: bool, is_patient: bool = False) -> Resident | None:
        """Give a slot to a sequence of which `n_tokens` are known, with as much of it as the cache has.

        At least one known token is left to compute, since the first choice needs its logits. None: no slot is idle.
        """
        idle = [resident for resident in self.residents if not resident.is_busy]
        if not idle:
            return None
        known = tokens[:n_tokens]
        target = min(idle, key=lambda resident: resident.stamp)
        n_own = n_lent = 0
        if may_reuse:
            best = max(idle, key=lambda resident: self._n_kept(resident, known))
            if n_own := self._n_kept(best, known):
                target = best
            source, n_lent = self._best_lender(known)
            if n_lent > n_own:
                # A copy: so take the slot that is missed the least, not the one with the second-best prefix.
                target = min(idle, key=lambda resident: resident.stamp)
                self._trim(target, 0)
                self._share(source, target, 0, n_lent)
        if n_lent <= n_own:
            n_lent = self._trim(target, n_own)
        self._settle(target, tokens, n_tokens, n_lent)
        target.is_patient = is_patient
        if may_reuse:
            self._find_leader(target)
        return target

    def catch_up(self, resident: Resident) -> None:
        """Take over what the leader has computed since; follow no longer once it has all, or has ended."""
        leader = resident.leader
        if leader is None:
            return
        is_there = leader.tokens is resident.awaited
        n_ready = min(leader.n_cached, resident.n_awaited) if is_there else 0
        if n_ready > resident.n_cached:
            self._share(leader, resident, resident.n_cached, n_ready)
            resident.n_reused += n_ready - resident.n_cached
            resident.n_cached = n_ready
        if not (is_there and leader.is_busy) or n_ready == resident.n_awaited:
            resident.leader = resident.awaited = None

    def release(self, resident: Resident) -> None:
        """The sequence ended; its tokens stay until the slot is needed."""
        resident.is_busy = False
        resident.leader = resident.awaited = None
        resident.stamp = next(self._stamps)

    def shelve(self, resident: Resident) -> Resident:
        """Take the slot of a busy sequence. What is returned stands for the sequence from now on; it has its cells as
        long as there is room for them, and none if no shelf is empty."""
        shelf = Resident(
            self._empty_shelves.pop() if self._empty_shelves else NOWHERE,
            resident.tokens,
            resident.n_tokens,
            is_patient=resident.is_patient,
            stamp=next(self._stamps),
        )
        if shelf.slot != NOWHERE:
            self._share(resident, shelf, 0, resident.n_cached)
            shelf.n_cached, shelf.n_reused = resident.n_cached, resident.n_reused
            shelf.n_pure = resident.n_pure
            self.shelved.append(shelf)
        self.release(resident)
        return shelf

    def unshelve(self, shelf: Resident, *, may_reuse: bool) -> Resident | None:
        """Give a slot to a sequence again, with what the cache still has of it. None: no slot is idle."""
        if not shelf.n_cached:
            target = self.place(shelf.tokens, shelf.n_tokens, may_reuse=may_reuse, is_patient=shelf.is_patient)
        elif target := self._least_missed():
            self._trim(target, 0)
            self._share(shelf, target, 0, shelf.n_cached)
            self._settle(target, shelf.tokens, shelf.n_tokens, shelf.n_cached)
            target.n_reused, target.is_patient = shelf.n_reused, shelf.is_patient
            target.n_pure = shelf.n_pure
        if target is not None:
            self.clear(shelf)
        return target

    def clear(self, shelf: Resident) -> None:
        """The sequence needs its shelf no more."""
        if shelf.slot != NOWHERE:
            self.forget(shelf)
            self.shelved.remove(shelf)
            self._empty_shelves.append(shelf.slot)

    def restore(self, resident: Resident) -> None:
        """After a decode that failed or was interrupted: let the cache have what the resident says, or nothing."""
        self.cut(resident, resident.n_cached)

    def drop_oldest_idle(self) -> bool:
        """Free the cells of the idle resident that was used least recently, or else of the sequence that was shelved
        first, since that one will surely be computed again; False when there is none."""
        idle = [resident for resident in self.residents if not resident.is_busy and resident.n_cached]
        droppable = idle or [shelf for shelf in self.shelved if shelf.n_cached]
        if not droppable:
            return False
        self.forget(min(droppable, key=lambda resident: resident.stamp))
        return True

    def forget(self, resident: Resident) -> None:
        """Free the cells of a resident."""
        self.cut(resident, 0)

    def unfollow(self) -> None:
        """Let nobody wait for a prefix that another computes: it may never come."""
        for resident in self.residents:
            resident.leader = resident.awaited = None

    def lose_all(self) -> None:
        """The cache is another now, and empty."""
        for resident in (*self.residents, *self.shelved):
            self.forget(resident)

    def _least_missed(self) -> Resident | None:
        """The idle slot that was used least recently."""
        idle = [resident for resident in self.residents if not resident.is_busy]
        return min(idle, key=lambda resident: resident.stamp, default=None)

    def _settle(self, target: Resident, tokens: Ids, n_tokens: int, n_cached: int) -> None:
        target.tokens, target.n_tokens = tokens, n_tokens
        target.n_cached = target.n_reused = n_cached
        target.n_pure = sys.maxsize
        target.is_busy = True
        target.stamp = next(self._stamps)

    def _n_kept(self, resident: Resident, known: Ids) -> int:
        """How much of an idle resident a sequence can go on from."""
        n = min(_common(resident.lendable, known), len(known) - 1)
        return n if self._can_rewind or n == resident.n_cached else 0

    def _best_lender(self, known: Ids) -> tuple[Resident, int]:
        lender, n_best = self.residents[0], 0
        busy = [resident for resident in self.residents if resident.is_busy]
        for resident in (*busy, *self.shelved) if self._can_rewind else ():
            n = min(_common(resident.lendable, known), len(known) - 1)
            if n > n_best:
                lender, n_best = resident, n
        return lender, n_best

    def _find_leader(self, target: Resident) -> None:
        """Look for a busy sequence that will soon have a longer prefix than the cache has now."""
        if not self._can_rewind:
            return
        known = target.tokens[: target.n_tokens]
        target.n_awaited = target.n_cached + MIN_SHARED - 1
        for other in self.residents:
            if other is target or not other.is_busy or other.n_pending <= 1:
                continue
            if other.is_patient and not target.is_patient:
                continue
            n = min(_common(other.tokens[: other.n_tokens], known), len(known) - 1, other.n_pure)
            if n > target.n_awaited:
                target.leader, target.awaited, target.n_awaited = other, other.tokens, n

    def _trim(self, resident: Resident, n_kept: int) -> int:
        """Cut a slot's cells to a length; 0 where the model cannot keep a part. Returns what is left."""
        if not self._cache.truncate(resident.slot, self._grouping.position(n_kept)):
            n_kept = 0
            self._cache.truncate(resident.slot, 0)
        self._account.cut(resident.slot, n_kept)
        return n_kept

    def _share(self, source: Resident, target: Resident, start: int, end: int) -> None:
        self._cache.share(source.slot, target.slot, start, end)
        self._account.share(source.slot, target.slot, start, end)


def _common(left: Ids, right: Ids) -> int:
    """Length of the common prefix."""
    n = min(len(left), len(right))
    differs = left[:n] != right[:n]
    return int(differs.argmax()) if differs.any() else n
