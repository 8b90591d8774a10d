"""What stands in the KV cache, sequence by sequence, and how a new one reuses it.

A sequence that ended stays as long as nobody needs its cells. The cache is unified: a prefix that several share stands
in it once, so a copy costs no cells, and there are more ids than slots, so that a new sequence need not push another
out. Who has which cells is in the account.

Knows nothing of slots, tasks, sampling or text.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from worker.engine.adapters import Scales
from worker.engine.cells.account import Account
from worker.engine.cells.eviction import least_missed, least_missed_end
from worker.engine.cells.resident import NO_SLOT, NOWHERE, Ids, Resident, Standing
from worker.engine.cells.spans import NO_SPANS, Spans
from worker.engine.grouping import UNGROUPED, Grouping
from worker.engine.llama import Bytes

__all__ = ["Cache", "Cells", "Ids", "Prefix", "Resident", "Standing"]

MIN_SHARED = 16
"""Tokens below which it is not worth waiting for another sequence to compute them."""
LEAST_CUT = 64
"""Positions that go at once when cells are needed: each cut makes llama.cpp look at all cells."""


class Cache(Protocol):
    """What cells need of a context."""

    def truncate(self, seq_id: int, n_kept: int) -> bool: ...

    def share(self, source: int, target: int, start: int, end: int) -> None: ...

    def shift(self, seq_id: int, start: int, end: int) -> None: ...

    def divide(self, seq_id: int, start: int, n: int) -> None: ...

    def put_state(self, seq_id: int, saved: Bytes, n_positions: int) -> None: ...


class Prefix(NamedTuple):
    """What a sequence can have of others."""

    source: Resident | None = None
    n_cached: int = 0
    """Tokens that the source has in the cache."""
    leader: Resident | None = None
    n_awaited: int = 0
    """Tokens that the leader will have; none if that is hardly more."""

    @property
    def n_tokens(self) -> int:
        return max(self.n_cached, self.n_awaited)


class Cells:
    """All sequences of a cache that takes the ids below `n_ids`. For the decode thread, between decodes.

    Ids must be enough for all that run. `can_rewind` is False for models whose state cannot lose its end: there a
    sequence is reused as a whole or not at all. `can_shift` is False where what is in the cache cannot be moved to
    other positions. Where tokens share positions (`grouping`), nobody lends anything: whole groups are moved when they
    are complete. Images have ids like tokens, so that they are reused like them; those that are whole are never cut.
    """

    def __init__(
        self,
        cache: Cache,
        n_ids: int,
        *,
        n_cells: int,
        can_rewind: bool = True,
        can_shift: bool = True,
        grouping: Grouping = UNGROUPED,
    ) -> None:
        self._cache = cache
        self.n_cells = n_cells
        self._account = Account(n_cells, n_ids)
        self._grouping = grouping
        self._can_rewind = can_rewind and grouping.n == 1
        self._can_shift = can_shift and grouping.n == 1
        self._stamps = itertools.count(1)
        self._unused_ids = list(reversed(range(n_ids)))
        self.residents: list[Resident] = []
        """All that have an id."""

    @property
    def n_free(self) -> int:
        """Cells that nobody has."""
        return self._account.n_free

    def n_within_reach(self, holders: Iterable[Resident], prefix: Prefix) -> int:
        """Cells that could be had without taking any from the holders, or from the prefix."""
        held = [(holder.seq_id, holder.n_cached) for holder in holders if holder.seq_id != NOWHERE]
        if prefix.source is not None:
            held.append((prefix.source.seq_id, prefix.n_cached))
        return self.n_cells - self._account.n_held(held)

    def prefix(self, known: Ids, scales: Scales = (), *, is_patient: bool = False, slot: int = NO_SLOT) -> Prefix:
        """The most that a sequence with these tokens can have of others that are computed with the same scales, now
        and soon; of the slot's own if that is as much. One known token at least is left to compute, since the first
        choice needs its logits."""
        best = Prefix()
        for other in self.residents:
            if other.scales != scales:
                continue
            n_common = other.spans.floor(min(_common(other.known, known), len(known) - 1, other.n_pure))
            if n_common <= 0:
                continue
            n_cached = self._n_lendable(other, n_common)
            if n_cached > best.n_cached or (n_cached and n_cached == best.n_cached and _lends_more(other, best, slot)):
                best = best._replace(source=other, n_cached=n_cached)
            if n_common > best.n_awaited and self._can_lead(other, is_patient=is_patient):
                best = best._replace(leader=other, n_awaited=n_common)
        if best.n_awaited < best.n_cached + MIN_SHARED:
            best = best._replace(leader=None, n_awaited=0)
        return best

    def place(
        self,
        tokens: Ids,
        n_tokens: int,
        *,
        may_reuse: bool,
        is_patient: bool = False,
        scales: Scales = (),
        spans: Spans = NO_SPANS,
        slot: int = NO_SLOT,
    ) -> Resident:
        """Begin with a sequence of which `n_tokens` are known, with as much of it as the cache has."""
        resident = Resident(tokens, n_tokens, is_patient, may_reuse, scales, spans)
        self.resume(resident, slot)
        return resident

    def park(self, resident: Resident) -> None:
        """A running sequence lost its slot. Nobody waits for it any more; its cells stay while there is room."""
        resident.standing = Standing.PARKED
        resident.leader = resident.awaited = None
        resident.stamp = next(self._stamps)

    def resume(self, resident: Resident, slot: int = NO_SLOT) -> None:
        """A sequence has a slot, with what the cache has of it."""
        resident.slot = slot
        prefix = self.prefix_of(resident)
        if resident.seq_id == NOWHERE:
            self._settle(resident, prefix)
        elif prefix.source is not None and prefix.n_cached > resident.n_cached:
            self._take(prefix.source, resident, prefix.n_cached)
        if prefix.leader is not None:
            resident.leader, resident.awaited = prefix.leader, prefix.leader.tokens
            resident.n_awaited = prefix.n_awaited
        resident.standing = Standing.RUNNING
        resident.stamp = next(self._stamps)

    def prefix_of(self, resident: Resident) -> Prefix:
        """What a sequence that does not run would have if it did."""
        can_mix = resident.may_reuse and self._can_rewind and resident.n_lendable == resident.n_cached
        if resident.n_cached and not can_mix:
            return Prefix(resident, resident.n_cached)
        if not resident.may_reuse:
            return Prefix()
        return self.prefix(resident.known, resident.scales, is_patient=resident.is_patient, slot=resident.slot)

    def release(self, resident: Resident) -> None:
        """The sequence ended; its tokens stay until its cells are needed."""
        if resident.seq_id != NOWHERE:
            resident.standing = Standing.IDLE
            resident.leader = resident.awaited = None
            resident.stamp = next(self._stamps)

    def of_slot(self, slot: int) -> list[Resident]:
        """Those that ran there last, and are over."""
        return [resident for resident in self._those(Standing.IDLE) if resident.slot == slot]

    def bring_in(self, resident: Resident, saved: Bytes) -> None:
        """Have a sequence that is over, all of whose tokens a state has from outside; there must be cells for them.
        Raises what the cache does when it refuses, and then has nothing of it."""
        seq_id = self._free_id(None)
        try:
            self._cache.put_state(seq_id, saved, self._grouping.position(resident.n_tokens))
        except Exception:
            self._unused_ids.append(seq_id)
            raise
        resident.seq_id = seq_id
        self.residents.append(resident)
        self._account.take(seq_id, resident.n_tokens)
        resident.n_cached = resident.n_tokens
        self.release(resident)

    def catch_up(self, resident: Resident) -> None:
        """Take over what the leader has computed since; follow no longer once it has all, or runs no more."""
        leader = resident.leader
        if leader is None:
            return
        is_there = leader.standing is Standing.RUNNING and leader.tokens is resident.awaited
        n_ready = 0
        if leader.tokens is resident.awaited:
            n_ready = resident.spans.floor(min(leader.n_cached, resident.n_awaited))
        if n_ready > resident.n_cached:
            self._take(leader, resident, n_ready)
        if not is_there or n_ready == resident.n_awaited:
            resident.leader = resident.awaited = None

    def unfollow(self) -> None:
        """Let nobody wait for a prefix that another computes: it may never come."""
        for resident in self.residents:
            resident.leader = resident.awaited = None

    def computed(self, resident: Resident, n_tokens: int) -> None:
        """So many more of the known tokens are in the cache, in cells of their own."""
        self._account.take(resident.seq_id, n_tokens)
        resident.n_cached += n_tokens
        if (start := self._grouping.completed(resident.n_cached)) is not None:
            self._cache.divide(resident.seq_id, start, self._grouping.n)

    def position(self, resident: Resident) -> int:
        """Where its next token stands."""
        return self._position(resident, resident.n_cached)

    def restore(self, resident: Resident) -> None:
        """After a decode that failed or was interrupted: let the cache have what the resident says, or nothing."""
        self.cut(resident, resident.n_cached)

    def cut(self, resident: Resident, n_kept: int) -> None:
        """Let the cells from position `n_kept` on go: those tokens are pending again. All are where the model cannot
        keep a part."""
        if resident.seq_id == NOWHERE:
            return
        n_kept = resident.spans.floor(n_kept)
        if n_kept < resident.n_cached and not self._can_rewind:
            n_kept = 0
        if not self._cache.truncate(resident.seq_id, self._position(resident, n_kept)):
            n_kept = 0
            self._cache.truncate(resident.seq_id, 0)
        self._account.cut(resident.seq_id, n_kept)
        resident.n_cached = n_kept
        resident.n_reused = min(resident.n_reused, n_kept)
        resident.n_lent = min(resident.n_lent, n_kept)
        if n_kept <= resident.n_pure:
            resident.n_pure = sys.maxsize

    def forget(self, resident: Resident) -> None:
        """Free the cells of a resident."""
        self.cut(resident, 0)

    def lose_all(self) -> None:
        """The cache is another now, and empty."""
        for resident in self.residents:
            self.forget(resident)

    def evict(self, resident: Resident) -> None:
        """Free the cells of a resident, and its id."""
        if resident.seq_id != NOWHERE:
            self.forget(resident)
            self._disown(resident)

    def give_up_idle(self, n_missing: int) -> bool:
        """Free cells that are held for the sake of others alone, about as many as are missing or fewer; False when
        there are none."""
        least = least_missed_end(self._those(Standing.IDLE))
        if least is None:
            return False
        resident, n_kept = least
        if n_kept == 0 and not self._account.n_private(resident.seq_id, 0, resident.n_cached):
            self.evict(resident)
        else:
            self.shorten(resident, n_missing, n_kept)
        return True

    def shorten(self, resident: Resident, n_missing: int, n_kept: int = 0) -> None:
        """Free cells at the end of a resident, about as many as are missing, but keep some; the id goes with the
        last."""
        self.cut(resident, max(n_kept, resident.n_cached - max(n_missing, LEAST_CUT)))
        if resident.n_cached == 0:
            self.evict(resident)

    def own(self, resident: Resident, start: int, end: int) -> bool:
        """Make the cells at positions [start, end) private if it is to be had for nothing: residents that are idle
        lose what they have of them, and what is behind. False when one that runs or is parked has some. Only private
        cells may be moved or divided, since that befalls all who have them."""
        sharing = [
            other
            for other in self.residents
            if other is not resident and self._account.have_common(resident.seq_id, other.seq_id, start, end)
        ]
        if any(other.standing is not Standing.IDLE for other in sharing):
            return False
        for other in sharing:
            self.cut(other, start)
        return True

    def shift(self, resident: Resident, n_kept: int, n_gone: int) -> None:
        """Drop the `n_gone` tokens behind the first `n_kept`; what stands behind them moves up.

        Its cells move with it where they can, but never those that another has, who would not know: then they are
        dropped, and what stands in them is to be computed again, behind what is left.
        """
        assert not resident.spans
        resident.leader = resident.awaited = None  # who computes a prefix of what it was, not of what it is now
        end, n_tokens = n_kept + n_gone, resident.n_tokens
        if self._can_shift and resident.n_cached >= end and self.own(resident, end, resident.n_cached):
            self._cache.shift(resident.seq_id, n_kept, end)
            self._account.close_gap(resident.seq_id, n_kept, end)
            resident.n_cached -= n_gone
            resident.n_reused = min(resident.n_reused, n_kept)
            resident.n_lent = min(resident.n_lent, n_kept)
            resident.n_pure = min(resident.n_pure, n_kept)
        else:
            self.cut(resident, min(n_kept, resident.n_cached))
        # In an array of its own: the old one is what others know that had the sequence's cells, or wait for them.
        tokens = resident.tokens.copy()
        tokens[n_kept : n_tokens - n_gone] = resident.tokens[end:n_tokens]
        resident.tokens, resident.n_tokens = tokens, n_tokens - n_gone

    def _position(self, resident: Resident, n_tokens: int) -> int:
        """Of the next token behind so many."""
        return resident.spans.position(n_tokens) if resident.spans else self._grouping.position(n_tokens)

    def _n_lendable(self, other: Resident, n_common: int) -> int:
        if self._grouping.n > 1 and other.standing is not Standing.IDLE:
            return 0
        n_cached = other.spans.floor(min(n_common, other.n_cached))
        return n_cached if self._can_rewind or n_cached == other.n_cached else 0

    def _can_lead(self, other: Resident, *, is_patient: bool) -> bool:
        is_computing = other.standing is Standing.RUNNING and other.n_pending > 1
        return self._can_rewind and is_computing and (is_patient or not other.is_patient)

    def _settle(self, resident: Resident, prefix: Prefix) -> None:
        """Give a sequence an id, and what others have of it."""
        source = prefix.source
        if source is not None and self._is_taken_over(source, prefix.n_cached):
            self.cut(source, prefix.n_cached)
            resident.n_lent, resident.lent_stamp = source.n_lent, source.lent_stamp
            resident.n_cached = resident.n_reused = source.n_cached
            resident.seq_id, source.seq_id = source.seq_id, NOWHERE
            source.n_cached = source.n_reused = source.n_lent = 0
            self.residents.remove(source)
        else:
            resident.seq_id = self._free_id(source)
            if source is not None:
                self._take(source, resident, prefix.n_cached)
        self.residents.append(resident)

    def _is_taken_over(self, source: Resident, n_cached: int) -> bool:
        """Whether a sequence goes on in the place of its source instead of beside it: when nothing is lost with that,
        or no other id is to be had. A state that cannot lose its end is better copied, for the next that begins like
        it, if an id lies about."""
        if source.standing is Standing.RUNNING:
            return False
        is_whole = source.standing is Standing.IDLE and n_cached == source.n_cached
        is_copied = not self._can_rewind and self._unused_ids and self._grouping.n == 1
        return (is_whole and not is_copied) or not self._can_free_id(source)

    def _can_free_id(self, source: Resident) -> bool:
        return bool(self._unused_ids) or any(
            other is not source and other.standing is not Standing.RUNNING for other in self.residents
        )

    def _free_id(self, source: Resident | None) -> int:
        """An unused id: that of the idle sequence which is missed the least if need be, or of the one that was parked
        last; not that of the source."""
        if not self._unused_ids:
            idle = least_missed(other for other in self._those(Standing.IDLE) if other is not source)
            parked = (other for other in self._those(Standing.PARKED) if other is not source)
            going = idle or max(parked, key=lambda other: other.stamp, default=None)
            assert going is not None, "there are fewer ids than running sequences"
            self.evict(going)
        return self._unused_ids.pop()

    def _disown(self, resident: Resident) -> None:
        self.residents.remove(resident)
        self._unused_ids.append(resident.seq_id)
        resident.seq_id = NOWHERE

    def _those(self, standing: Standing) -> list[Resident]:
        return [resident for resident in self.residents if resident.standing is standing]

    def _take(self, source: Resident, target: Resident, end: int) -> None:
        """Let a resident have what its source has up to there, behind what it has itself."""
        start = target.n_cached
        at, to = self._position(target, start), self._position(source, end)
        self._cache.share(source.seq_id, target.seq_id, at, to)
        self._account.share(source.seq_id, target.seq_id, start, end)
        target.n_cached = end
        target.n_reused += end - start
        source.n_lent = max(source.n_lent, end)
        source.lent_stamp = next(self._stamps)


def _lends_more(other: Resident, best: Prefix, slot: int) -> bool:
    """Of those that have the same, the one that lent last goes on lending: it is the one that is kept for it. But what
    was in the slot goes first."""
    if best.source is None:
        return True
    is_own, is_best_own = (each.slot == slot != NO_SLOT for each in (other, best.source))
    return (is_own, other.lent_stamp) > (is_best_own, best.source.lent_stamp)


def _common(left: Ids, right: Ids) -> int:
    """Length of the common prefix."""
    n = min(len(left), len(right))
    if n == 0 or left[0] != right[0]:
        return 0
    differs = left[:n] != right[:n]
    first = int(differs.argmax())
    return first if differs[first] else n
