"""Tasks that have no slot yet: interactive ones first, each lane in the order of arrival.

For the decode thread; lengths may be read from any. Knows nothing of slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from shared.jobs import Lane
from worker.engine.task import EmbedTask, GenerateTask

T = TypeVar("T", GenerateTask, EmbedTask)


class Waiting(NamedTuple, Generic[T]):
    """A task, and since when it waits (monotonic seconds)."""

    task: T
    since: float


class Lanes(Generic[T]):
    def __init__(self) -> None:
        self._lanes: dict[Lane, deque[Waiting[T]]] = {lane: deque() for lane in Lane}

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def add(self, task: T, since: float) -> None:
        self._lanes[task.lane].append(Waiting(task, since))

    def pop(self) -> Waiting[T]:
        """The next; IndexError when none waits."""
        return (self._lanes[Lane.INTERACTIVE] or self._lanes[Lane.BULK]).popleft()

    def remove(self, is_going: Callable[[T], bool]) -> list[T]:
        """Take out the tasks that go."""
        gone: list[T] = []
        for lane, tasks in self._lanes.items():
            going = [waiting.task for waiting in tasks if is_going(waiting.task)]
            if going:
                gone += going
                self._lanes[lane] = deque(waiting for waiting in tasks if not is_going(waiting.task))
        return gone
