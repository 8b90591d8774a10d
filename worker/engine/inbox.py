"""What other threads tell the decode thread, in order. A message wakes it; a person's task can cut its decode short.

Knows nothing of what comes of a message.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from shared.jobs import Lane
from worker.engine.llama import Interrupt
from worker.engine.task import SlotTask, Task


class Submit(NamedTuple):
    """A task, and when it came in (monotonic seconds)."""

    task: Task
    at: float


class Cancel(NamedTuple):
    """The tasks of a job, whatever the attempt."""

    job_id: str

    def is_meant(self, task: Task) -> bool:
        return task.key.job_id == self.job_id


class Discard(NamedTuple):
    """The tasks of one attempt at a job."""

    job_id: str
    attempt: int

    def is_meant(self, task: Task) -> bool:
        return (task.key.job_id, task.key.attempt) == (self.job_id, self.attempt)


Message = Submit | Cancel | Discard


class Inbox:
    """`send`, `wake` and the length are for any thread, the rest is for the one that decodes. Never blocks a sender."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._wake = threading.Event()
        self._interrupt = Interrupt()

    def __len__(self) -> int:
        return len(self._messages)

    def send(self, message: Message) -> None:
        self._messages.append(message)
        self.wake()
        if _is_from_person(message):
            self._interrupt.set()  # after the message can be found: see `interrupt_for_people`

    def wake(self) -> None:
        self._wake.set()

    def wait(self) -> None:
        """Rest until something is sent, or was since `take` began."""
        self._wake.wait()

    def take(self) -> Iterator[Message]:
        """Take out the messages, those included that come meanwhile."""
        self._wake.clear()
        while self._messages:
            yield self._messages.popleft()

    def interrupt_for_people(self) -> Interrupt:
        """For the next decode: set as soon as a person's task is here, even if it came a moment ago."""
        self._interrupt.clear()
        if any(_is_from_person(message) for message in list(self._messages)):
            self._interrupt.set()
        return self._interrupt


def _is_from_person(message: Message) -> bool:
    """Of who waits for a decode."""
    if not isinstance(message, Submit) or isinstance(message.task, SlotTask):
        return False
    return message.task.lane is Lane.INTERACTIVE
