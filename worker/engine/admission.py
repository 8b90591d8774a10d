"""Who gets a slot: people first, in the order in which they came; then bulk, which gives its slots up for them.

Bulk whose slot a person took is *parked*, and goes on before other bulk starts. Bulk that has waited too long goes
before people, one at a time. Knows nothing of batches, llama.cpp or text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from shared.jobs import Lane
from worker.engine.cells import Cells
from worker.engine.lanes import Ageing, Lanes
from worker.engine.sequence import Phase, Sequence
from worker.engine.task import GenerateTask

Launch = Callable[[GenerateTask, float], Sequence]
"""Gives a task that waits since then (monotonic seconds) one of the idle slots."""


class Admission:
    """The sequences that run, those that are parked, and the tasks that wait.

    For the decode thread; `slots`, `n_waiting` and `n_parked` may be read from any. Its lists are written here alone.
    """

    def __init__(self, cells: Cells, launch: Launch, *, age_s: float, quantum_s: float) -> None:
        self._cells = cells
        self._launch = launch
        self._ageing = Ageing(age_s, quantum_s)
        self._quantum_s = quantum_s
        self._waiting: Lanes[GenerateTask] = Lanes()
        self._parked: list[Sequence] = []
        self.running: list[Sequence] = []
        """Those that have a slot, in the order in which they got it."""
        self.slots: list[Sequence | None] = [None] * len(cells.residents)
        """Who is in each slot, or was there last."""

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_parked(self) -> int:
        return len(self._parked)

    @property
    def is_idle(self) -> bool:
        """Nobody runs, is parked or waits."""
        return not (self.running or self._parked or len(self._waiting))

    def has_slot_for_person(self) -> bool:
        """Whether a person who came now would have one at once."""
        return self._cells.n_idle > 0 or self._cheapest_to_park() is not None

    def add(self, task: GenerateTask, since: float) -> None:
        """Let a task wait for a slot; it came at that time (monotonic seconds)."""
        self._waiting.add(task, since)

    def remove(self, is_going: Callable[[GenerateTask], bool]) -> list[GenerateTask]:
        """Take out tasks that wait."""
        return self._waiting.remove(is_going)

    def sequences(self) -> list[Sequence]:
        """Those that run and those that are parked."""
        return [*self.running, *self._parked]

    def admit(self) -> None:
        """Fill the slots. People who find none take those of bulk, which is parked."""
        for sequence in self.running:
            self._cells.catch_up(sequence.resident)  # before slots change hands: a leader may be among those that go
        while self._cells.n_idle and self._start_next():
            pass
        while self._waiting.count(Lane.INTERACTIVE) and (bulk := self._cheapest_to_park()):
            self._park(bulk)
            self._start(Lane.INTERACTIVE)

    def retire(self) -> int:
        """Free the slots of sequences that ended, whose cells stay, and the shelves of those that were parked. Returns
        how many there were."""
        ended = _ended(self.running)
        for sequence in ended:
            self._cells.release(sequence.resident)
            self.running.remove(sequence)
        ended_parked = _ended(self._parked)
        for sequence in ended_parked:
            self._cells.clear(sequence.resident)
            self._parked.remove(sequence)
        return len(ended) + len(ended_parked)

    def _start_next(self) -> bool:
        """Give an idle slot to who is next: bulk that is due, people, parked bulk, other bulk. False: nobody waits."""
        now = time.monotonic()
        parked = min(self._parked, key=lambda sequence: sequence.waits_since, default=None)
        since = parked.waits_since if parked else self._waiting.since(Lane.BULK)
        have_people = self._waiting.count(Lane.INTERACTIVE) > 0
        is_due = have_people and self._ageing.is_due(since, now)
        if have_people and not is_due:
            self._start(Lane.INTERACTIVE)
        elif parked:
            self._resume(parked, now)
        elif self._waiting.count(Lane.BULK):
            self._start(Lane.BULK)
        else:
            return False
        if is_due:
            self.running[-1].guarded_until = self._ageing.begin(now)
        return True

    def _cheapest_to_park(self) -> Sequence | None:
        """Should its cells be needed, all that it has in them must be computed again: so the one with the fewest. It
        has mostly run the shortest, and is still in its prompt if any is."""
        now = time.monotonic()
        bulk = [sequence for sequence in self.running if sequence.is_bulk and sequence.guarded_until <= now]
        return min(bulk, key=lambda sequence: sequence.resident.n_cached, default=None)

    def _park(self, sequence: Sequence) -> None:
        shelf = self._cells.shelve(sequence.resident)
        sequence.park(shelf, time.monotonic(), self._quantum_s)
        self.running.remove(sequence)
        self._parked.append(sequence)

    def _resume(self, sequence: Sequence, now: float) -> None:
        """Give a parked sequence a slot; one must be idle."""
        resident = self._cells.unshelve(sequence.resident, may_reuse=sequence.task.request.cache_prompt)
        assert resident is not None
        sequence.resume(resident, now)
        self._parked.remove(sequence)
        self._seat(sequence)

    def _start(self, lane: Lane) -> None:
        task, since = self._waiting.pop(lane)
        self._seat(self._launch(task, since))

    def _seat(self, sequence: Sequence) -> None:
        self.running.append(sequence)
        self.slots[sequence.slot] = sequence


def _ended(sequences: Iterable[Sequence]) -> list[Sequence]:
    return [sequence for sequence in sequences if sequence.phase is Phase.ENDED]
