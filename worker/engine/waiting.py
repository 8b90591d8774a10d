"""Who has no slot: tasks that have not begun, sequences that were parked, and those of both that want one slot alone.

For the decode thread; counts and `stuck` may be read from any. Knows nothing of cells, nor of who may start.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from shared.jobs import Lane
from worker.engine.cells.resident import Ids
from worker.engine.lanes import Lanes
from worker.engine.sequence import Sequence
from worker.engine.snapshot import Stuck
from worker.engine.task import GenerateTask


class Newcomer(NamedTuple):
    """A task that has not had a slot yet."""

    task: GenerateTask
    known: Ids
    """The tokens with which it begins."""
    waits_since: float
    """Monotonic seconds."""

    @property
    def lane(self) -> Lane:
        return self.task.lane


Comer = Newcomer | Sequence


class WaitingRoom:
    """Each lane in the order of arrival; who was parked is before those who have not begun."""

    def __init__(self) -> None:
        self._newcomers: Lanes[Newcomer] = Lanes()
        """Those that would take any slot."""
        self._choosy: list[Newcomer] = []
        """Those that wait for a slot of their own, in the order in which they came."""
        self.parked: list[Sequence] = []
        """All of them. Written here alone."""

    @property
    def n_newcomers(self) -> int:
        return len(self._newcomers) + len(self._choosy)

    @property
    def is_empty(self) -> bool:
        return not (self.parked or self.n_newcomers)

    def stuck(self) -> tuple[Stuck, ...]:
        """All of bulk."""
        parked = [Stuck(each.task.key, each.parked_at) for each in list(self.parked) if each.is_bulk]
        newcomers = [*(newcomer for newcomer, _ in self._newcomers.peek(Lane.BULK)), *list(self._choosy)]
        return (*parked, *(Stuck(each.task.key, each.waits_since) for each in newcomers if each.lane is Lane.BULK))

    def add(self, newcomer: Newcomer) -> None:
        if newcomer.task.slot is None:
            self._newcomers.add(newcomer, newcomer.waits_since)
        else:
            self._choosy.append(newcomer)

    def remove(self, is_going: Callable[[GenerateTask], bool]) -> list[GenerateTask]:
        """Take out tasks that have not begun."""
        going = [each for each in self._choosy if is_going(each.task)]
        self._choosy = [each for each in self._choosy if not is_going(each.task)]
        going += self._newcomers.remove(lambda newcomer: is_going(newcomer.task))
        return [newcomer.task for newcomer in going]

    def begin(self, newcomer: Newcomer, at: int = 0) -> None:
        """It has a slot; it is so many behind the first of its lane, unless it waited for that very slot."""
        if newcomer.task.slot is None:
            self._newcomers.pop(newcomer.lane, at)
        else:
            self._choosy = [each for each in self._choosy if each is not newcomer]

    def count(self, lane: Lane) -> int:
        """Those that have not begun and would take any slot."""
        return self._newcomers.count(lane)

    def ahead(self, lane: Lane, n: int) -> list[Newcomer]:
        """The next few of them."""
        return list(self._newcomers.ahead(lane, n))

    def first_parked(self, lane: Lane) -> Sequence | None:
        """Of those that would take any slot."""
        parked = (each for each in self.parked if each.lane is lane and each.task.slot is None)
        return min(parked, key=lambda sequence: sequence.waits_since, default=None)

    def first(self, lane: Lane) -> Comer | None:
        """Who is next of those that would take any slot."""
        return self.first_parked(lane) or next(islice(self._newcomers.ahead(lane, 1), 1), None)

    def choosy(self) -> list[Comer]:
        """All that want one slot alone."""
        return [*(each for each in self.parked if each.task.slot is not None), *self._choosy]

    def first_choosy(self, lane: Lane) -> list[Comer]:
        """Who is next for each slot that somebody wants alone."""
        first: dict[int | None, Comer] = {}
        for comer in self.choosy():
            if comer.lane is lane:
                first.setdefault(comer.task.slot, comer)
        return list(first.values())

    def has_waiting(self, slot: int, since: float) -> bool:
        """Whether somebody has waited for that very slot since before then."""
        return any(each.task.slot == slot and each.waits_since < since for each in self.choosy())
