"""Tasks that have no slot yet, each lane in the order of arrival, and when bulk may go before people.

For the decode thread; lengths may be read from any. Knows nothing of slots.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from shared.jobs import Lane


class Laned(Protocol):
    @property
    def lane(self) -> Lane: ...


T = TypeVar("T", bound=Laned)


AGE_S = 30.0
"""Bulk that has waited longer goes before people."""
QUANTUM_S = 5.0
"""So often one may, and so long it is not disturbed."""


class Waiting(NamedTuple, Generic[T]):
    """A task, and since when it waits (monotonic seconds)."""

    task: T
    since: float


class Lanes(Generic[T]):
    def __init__(self) -> None:
        self._lanes: dict[Lane, deque[Waiting[T]]] = {lane: deque() for lane in Lane}

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def count(self, lane: Lane) -> int:
        return len(self._lanes[lane])

    def since(self, lane: Lane) -> float:
        """Since when the next of a lane waits; infinity when none does."""
        return self._lanes[lane][0].since if self._lanes[lane] else math.inf

    def first(self, lane: Lane) -> T:
        """The next of a lane; IndexError when none waits."""
        return self._lanes[lane][0].task

    def add(self, task: T, since: float) -> None:
        self._lanes[task.lane].append(Waiting(task, since))

    def ahead(self, lane: Lane, n: int) -> Iterator[T]:
        """The next few of a lane."""
        return (waiting.task for waiting in islice(self._lanes[lane], n))

    def peek(self, lane: Lane) -> list[Waiting[T]]:
        """All of a lane as it is now. From any thread: a deque is copied at once."""
        return list(self._lanes[lane])

    def pop(self, lane: Lane, at: int = 0) -> Waiting[T]:
        """Take out the next of a lane, or the one so many behind it; IndexError when there is none."""
        waiting = self._lanes[lane][at]
        del self._lanes[lane][at]
        return waiting

    def drop(self, task: T) -> None:
        """Take out one; at no cost where it is the next of its lane."""
        if self._lanes[task.lane][0].task is task:
            self._lanes[task.lane].popleft()
        else:
            self.remove(lambda each: each is task)

    def remove(self, is_going: Callable[[T], bool]) -> list[T]:
        """Take out the tasks that go."""
        gone: list[T] = []
        for lane, tasks in self._lanes.items():
            going = [waiting.task for waiting in tasks if is_going(waiting.task)]
            if going:
                gone += going
                self._lanes[lane] = deque(waiting for waiting in tasks if not is_going(waiting.task))
        return gone


class Ageing:
    """Lets bulk that has waited too long go before people, one at a time, so that it is never starved for good.

    Bound: of those that wait, the one that waits longest goes next as soon as it has waited `age_s`, the quantum of
    the one before it is over, and what it waits for is free. The n-th of them goes n - 1 quanta after that at the
    latest. A person waits one quantum more than without bulk at most, and only where no other slot is to be had.
    """

    def __init__(self, age_s: float, quantum_s: float) -> None:
        self._age_s = age_s
        self.quantum_s = quantum_s
        self._next_at = 0.0

    def is_due(self, since: float, now: float) -> bool:
        """Whether bulk that waits since then goes first."""
        return self.is_old(since, now) and now >= self._next_at

    def is_old(self, since: float, now: float) -> bool:
        """Whether whoever waits since then has waited too long."""
        return now - since >= self._age_s

    def begin(self, now: float) -> float:
        """It goes. Returns until when it is not to be disturbed."""
        self._next_at = now + self.quantum_s
        return self._next_at
