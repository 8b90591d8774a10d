"""Who gets a slot and cells: people first, in the order in which they came; then bulk, which gives way to them.

Who starts fits: its known tokens have cells, beside what those that run are about to need. When cells run out all the
same, the idle lose theirs, then the parked, and then whoever ranks last among those that run is *parked*: its tokens
stay, and what its cells held is computed again when there is room. Who was parked goes on before others of its lane
start. Bulk that has waited too long goes before people, one at a time.

Who names a slot waits for that one, lets others pass meanwhile, and has it before those of its lane that would take
any; but not before somebody who has waited too long.

Everybody comes to an end. The first by rank of those that run is never parked for want of cells, since all cells are
enough for any one; so it goes on to its end, and one fewer is left. Nobody who was parked comes back in its way: to
fit, it would need the cells that were too few when it went, until one of those that run has ended.

Knows nothing of batches, llama.cpp or text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from shared.jobs import Lane
from worker.engine.cells import Cells, Ids, Prefix
from worker.engine.lanes import Ageing
from worker.engine.sequence import Phase, Sequence
from worker.engine.snapshot import Stuck
from worker.engine.task import GenerateTask, SequenceKey
from worker.engine.waiting import Comer, Newcomer, WaitingRoom

GROWTH = 16
"""Tokens that each of those that run can still choose before cells run out, when another starts. With fewer, one of
them would soon be parked again; more leaves cells unused."""
LOOK_AHEAD = 16
"""Tasks of bulk among which the one starts first whose beginning the cache has."""
MOST_PASSED = 64
"""Times that the next one of bulk lets others start before it for that."""
LOOK_EVERY_S = 0.02
"""So often it is looked who can start although nobody came or went: guards end, and bulk grows old."""


class Launching(Protocol):
    """What comes of a task when it gets a slot."""

    def known(self, task: GenerateTask) -> Ids:
        """The tokens with which it begins."""

    def launch(self, task: GenerateTask, known: Ids, since: float, slot: int) -> Sequence:
        """Give this slot to a task that waits since then (monotonic seconds)."""


class Admission:
    """The sequences that run, those that are parked, and the tasks that wait.

    For the decode thread; `slots`, `stuck` and the counts may be read from any. Its lists are written here alone.
    """

    def __init__(self, cells: Cells, launcher: Launching, n_slots: int, ageing: Ageing) -> None:
        self._cells = cells
        self._launcher = launcher
        self._ageing = ageing
        self._room = WaitingRoom()
        self._n_passed = 0
        self._settled_until = 0.0
        """Till then (monotonic seconds) nobody can start, unless somebody comes or goes."""
        self.running: list[Sequence] = []
        """Those that have a slot, in the order in which they got it."""
        self.slots: list[Sequence | None] = [None] * n_slots
        """Who is in each slot, or was there last."""

    @property
    def n_waiting(self) -> int:
        return self._room.n_newcomers

    @property
    def n_parked(self) -> int:
        return len(self._room.parked)

    @property
    def n_parked_for_any(self) -> int:
        """Of those, who would go on in any slot."""
        return sum(sequence.task.slot is None for sequence in list(self._room.parked))

    def stuck(self) -> tuple[Stuck, ...]:
        """Bulk that has no slot."""
        return self._room.stuck()

    @property
    def is_idle(self) -> bool:
        """Nobody runs, is parked or waits."""
        return not self.running and self._room.is_empty

    def has_slot_for_person(self) -> bool:
        """Whether a person who came now would have one at once."""
        return self._has_idle_slot or self._cheapest_to_park() is not None

    def add(self, task: GenerateTask, since: float) -> None:
        """Let a task wait for a slot; it came at that time (monotonic seconds)."""
        assert task.slot is None or 0 <= task.slot < len(self.slots)
        self._room.add(Newcomer(task, self._launcher.known(task), since))
        self._settled_until = 0.0

    def remove(self, is_going: Callable[[GenerateTask], bool]) -> list[GenerateTask]:
        """Take out tasks that wait."""
        self._settled_until = 0.0
        return self._room.remove(is_going)

    def holder(self, slot: int) -> Sequence | None:
        """Who runs in a slot."""
        return next((sequence for sequence in self.running if sequence.slot == slot), None)

    def is_awaited(self, slot: int, since: float) -> bool:
        """Whether somebody has waited for that very slot since before then."""
        return self._room.has_waiting(slot, since)

    def sequences(self) -> list[Sequence]:
        """Those that run and those that are parked."""
        return [*self.running, *self._room.parked]

    def admit(self) -> None:
        """Start whoever can. People who find no slot take one of bulk, which is parked."""
        for sequence in self.running:
            if sequence.resident.leader is not None:
                self._cells.catch_up(sequence.resident)
        now = time.monotonic()
        if now < self._settled_until:
            return
        while self._start_due(now):
            pass
        if self._start_choosy(Lane.INTERACTIVE, now):
            while self._start_next(now):
                pass
        self._settled_until = now + LOOK_EVERY_S

    def make_room(self, n_missing: int) -> bool:
        """Free some cells for those that run, perhaps fewer than are missing; False when only one is left and has them
        all."""
        if self._cells.give_up_idle(n_missing):
            return True
        if parked := [sequence.resident for sequence in self._room.parked if sequence.resident.n_cached]:
            # From the end of the one that goes on last: what is left of it need not be computed again.
            self._cells.shorten(max(parked, key=lambda resident: resident.stamp), n_missing)
            return True
        if len(self.running) < 2:
            return False
        self._park(max(self.running, key=_rank))
        return True

    def retire(self) -> int:
        """Free the slots of sequences that ended, whose cells stay, and the cells of those that were parked. Returns
        how many there were."""
        ended = _ended(self.running)
        for sequence in ended:
            self._cells.release(sequence.resident)
            self.running.remove(sequence)
        ended_parked = _ended(self._room.parked)
        for sequence in ended_parked:
            self._cells.release(sequence.resident)
            self._room.parked.remove(sequence)
        if ended or ended_parked:
            self._settled_until = 0.0
        return len(ended) + len(ended_parked)

    def _start_due(self, now: float) -> bool:
        """Give an idle slot to bulk that has waited too long, though people wait."""
        if not (self._room.first(Lane.INTERACTIVE) or self._room.first_choosy(Lane.INTERACTIVE)):
            return False
        comers = [comer for comer in (self._room.first(Lane.BULK), *self._room.first_choosy(Lane.BULK)) if comer]
        due = [each for each in comers if self._ageing.is_due(each.waits_since, now) and self._is_idle_for(each)]
        if not due or not self._start(min(due, key=lambda comer: comer.waits_since)):
            return False
        self.running[-1].guarded_until = self._ageing.begin(now)
        return True

    def _start_choosy(self, lane: Lane, now: float) -> bool:
        """Start those whose slot is to be had; False when one of them has no cells: then nobody of the lane passes."""
        first = self._room.first(lane)
        is_late = first is not None and self._ageing.is_old(first.waits_since, now)
        for comer in self._room.first_choosy(lane):
            is_in_turn = not (is_late and first and first.waits_since < comer.waits_since)
            if is_in_turn and self._has_slot_for(comer) and not self._start(comer):
                return False
        return True

    def _start_next(self, now: float) -> bool:
        """Start who is next; False when nobody waits, or who is next cannot: those behind do not pass."""
        if person := self._room.first(Lane.INTERACTIVE):
            return self._start(person)
        if not self._start_choosy(Lane.BULK, now):
            return False
        if parked := self._room.first_parked(Lane.BULK):
            return self._start(parked)
        return self._room.count(Lane.BULK) > 0 and self._start_bulk()

    def _start_bulk(self) -> bool:
        """Start one of the next of bulk, whose beginning the cache has; but the first lets only so many pass."""
        if not self._has_idle_slot:
            return False
        at = self._best_known() if self._n_passed < MOST_PASSED else 0
        if not self._start(self._room.ahead(Lane.BULK, at + 1)[at], at):
            return False
        self._n_passed = self._n_passed + 1 if at else 0
        return True

    def _best_known(self) -> int:
        """Which of the next of bulk, counted from the first, the cache has most of; one of which it has half is as
        good as any, and spares looking further."""
        best, n_best = 0, 0
        for at, newcomer in enumerate(self._room.ahead(Lane.BULK, LOOK_AHEAD)):
            n_tokens = self._prefix(newcomer).n_tokens
            if 2 * n_tokens >= len(newcomer.known):
                return at
            if n_tokens > n_best:
                best, n_best = at, n_tokens
        return best

    def _start(self, comer: Comer, at: int = 0) -> bool:
        """Give a slot to the task so many behind the first of its lane, or to a parked sequence, if one is to be had
        and there are cells."""
        rivals = self.running if comer.lane is Lane.BULK else [each for each in self.running if not _gives_way(each)]
        if not self._has_slot_for(comer) or not self._fits(comer, rivals):
            return False
        slot = self._free_slot(comer.task.slot)
        if isinstance(comer, Sequence):
            self._cells.resume(comer.resident, slot)
            comer.resume(slot, time.monotonic())
            self._room.parked.remove(comer)
            sequence = comer
        else:
            self._room.begin(comer, at)
            sequence = self._launcher.launch(comer.task, comer.known, comer.waits_since, slot)
        self.running.append(sequence)
        self.slots[slot] = sequence
        return True

    def _fits(self, comer: Comer, rivals: list[Sequence]) -> bool:
        """Whether it has cells beside those that do not go for it. Alone, anybody has."""
        if not rivals:
            return True
        n_known = len(comer.known) if isinstance(comer, Newcomer) else comer.resident.n_tokens
        n_needed = n_known + GROWTH + sum(map(_n_promised, rivals))
        if n_needed <= self._cells.n_free:
            return True
        prefix = self._prefix(comer)
        within_reach = self._cells.n_within_reach((rival.resident for rival in rivals), prefix)
        return n_needed - prefix.n_tokens <= within_reach

    def _prefix(self, comer: Comer) -> Prefix:
        if isinstance(comer, Sequence):
            return self._cells.prefix_of(comer.resident)
        if not comer.task.request.cache_prompt:
            return Prefix()
        return self._cells.prefix(comer.known, comer.task.scales, is_patient=comer.lane is Lane.BULK)

    @property
    def _has_idle_slot(self) -> bool:
        return len(self.running) < len(self.slots)

    def _is_idle_for(self, comer: Comer) -> bool:
        return self._has_idle_slot if comer.task.slot is None else self.holder(comer.task.slot) is None

    def _has_slot_for(self, comer: Comer) -> bool:
        """Whether it is idle, or held by bulk that gives way to a person."""
        if self._is_idle_for(comer):
            return True
        return comer.lane is Lane.INTERACTIVE and self._cheapest_to_park(comer.task.slot) is not None

    def _free_slot(self, wanted: int | None) -> int:
        """The slot that is wanted, or an idle one, if there is such a one which nobody waits for; else that of bulk
        which costs the least to park."""
        is_held = not self._has_idle_slot if wanted is None else self.holder(wanted) is not None
        if is_held:
            bulk = self._cheapest_to_park(wanted)
            assert bulk is not None
            self._park(bulk)
        if wanted is not None:
            return wanted
        taken = {sequence.slot for sequence in self.running}
        awaited = {comer.task.slot for comer in self._room.choosy()}
        idle = (slot for slot in range(len(self.slots)) if slot not in taken)
        return min(idle, key=lambda slot: (slot in awaited, slot))

    def _cheapest_to_park(self, slot: int | None = None) -> Sequence | None:
        """Should its cells be needed, all that it has in them must be computed again: so the one with the fewest. It
        has mostly run the shortest, and is still in its prompt if any is. With `slot`, only whoever is in that one."""
        bulk = [each for each in self.running if _gives_way(each) and slot in (None, each.slot)]
        return min(bulk, key=lambda sequence: sequence.resident.n_cached, default=None)

    def _park(self, sequence: Sequence) -> None:
        self._cells.park(sequence.resident)
        sequence.park(time.monotonic(), self._ageing.quantum_s)
        self.running.remove(sequence)
        self._room.parked.append(sequence)


def _rank(sequence: Sequence) -> tuple[int, float, SequenceKey]:
    """The greatest is parked first when cells run out: bulk before people before bulk that is guarded, and the newest
    of them. While no guard ends, the order of any two stays as it is."""
    kind = 1 if not sequence.is_bulk else 2 if _gives_way(sequence) else 0
    return kind, sequence.clock.started, sequence.task.key


def _gives_way(sequence: Sequence) -> bool:
    """Whether people take its slot and its cells."""
    return sequence.is_bulk and sequence.guarded_until <= time.monotonic()


def _n_promised(sequence: Sequence) -> int:
    """Cells that a running sequence will soon need besides those that it has."""
    n_remain = sequence.n_remain
    return sequence.resident.n_to_compute + (GROWTH if n_remain < 0 else min(n_remain, GROWTH))


def _ended(sequences: Iterable[Sequence]) -> list[Sequence]:
    return [sequence for sequence in sequences if sequence.phase is Phase.ENDED]
