"""The jobs that this worker holds right now: lease, numbering and the answer as it comes together.

Lives on the event loop's thread alone. Knows neither Redis nor llama.cpp.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shared.bus import Chunk, Claimed, Lease
from shared.events import Accepted, Failure, Finished, Part, Progress, Tokens
from shared.jobs import Job, Lane
from worker.engine import Task

INPUTS_AT_ONCE = 64
"""Of one job in the engine: two decodes of as many as ever share one."""


@dataclass(slots=True, eq=False)
class Held:
    """One claimed job.

    Invariant: `next_event` is the number of the first event that the bus has not been given yet, so chunks are taken
    in order and each event is in one chunk.
    """

    claimed: Claimed
    expected: int = 1
    """Sequences or inputs that must end before the job has."""
    next_event: int = 1
    held_since: float = field(default_factory=time.monotonic)
    is_taken_in: bool = False
    """The engine has sequences of it, and is the one to end them."""
    ahead: deque[Task] = field(default_factory=deque)
    """Those that it has not been given yet."""
    parts: dict[int, Part] = field(default_factory=dict)
    failure: Failure | None = None
    is_leaving: bool = False
    """It is on its way back to the queue, unless its ending came first."""
    accepted: Accepted | None = None
    progress: dict[int, Progress] = field(default_factory=dict)
    """By sequence, the latest."""
    unsent: list[Tokens] = field(default_factory=list)
    _most_places: int = field(init=False)

    def __post_init__(self) -> None:
        self._most_places = self.job.n_places  # looks at all inputs

    @property
    def job(self) -> Job:
        return self.claimed.job

    @property
    def lease(self) -> Lease:
        return self.claimed.lease

    @property
    def queue(self) -> str:
        """The line that it came from."""
        return "own" if self.claimed.is_own else self.claimed.queue or self.job.queue

    @property
    def n_slots(self) -> int:
        """Those that it has, or would like to have: one at least while it is held."""
        return max(1, self.job.n_slots - len(self.parts))

    @property
    def n_places(self) -> int:
        """Of the room for inputs, as far as they are still to be embedded."""
        return max(1, math.ceil(self._most_places * (1 - len(self.parts) / self.expected)))

    @property
    def is_complete(self) -> bool:
        return self.failure is not None or len(self.parts) >= self.expected

    @property
    def is_over(self) -> bool:
        """This worker has no more to do with it than to say so."""
        return self.is_complete or self.is_leaving

    def leave(self) -> None:
        """Another worker is to go on with it: the engine is given no more of it."""
        self.is_leaving = True
        self.ahead.clear()

    def take_tasks(self, most: int) -> list[Task]:
        """What the engine is to be given now, so that it has at most so many sequences of a job that wants several:
        others come between the rest. Of inputs, which are short, it has more."""
        n_inside = self.expected - len(self.parts) - len(self.ahead)
        n_more = (INPUTS_AT_ONCE if self.job.has_inputs else most) - n_inside
        return [self.ahead.popleft() for _ in range(min(n_more, len(self.ahead)))]

    def hear(self, event: Accepted | Progress | Tokens | Part | Failure) -> None:
        """Take in what the intake or the engine said. The first failure ends the job, whatever else is under way."""
        match event:
            case Tokens():
                self.unsent.append(event)
            case Accepted():
                self.accepted = event
            case Progress():
                self.progress[event.index] = event
            case Failure():
                self.failure = self.failure or event
            case _:
                self.parts.setdefault(event.index, event)

    @property
    def is_urgent(self) -> bool:
        """Whether somebody waits for what is unsent: a person for every token, bulk for its acceptance and its end,
        and another worker for what is given back."""
        if self.is_over or self.accepted is not None:
            return True
        return self.job.lane is Lane.INTERACTIVE and bool(self.unsent or self.progress)

    def take_chunks(self) -> list[Chunk]:
        """What is to be appended now, numbered: mostly one, and more when several sequences tell of their prompts."""
        if not (self.unsent or self.accepted or self.progress):
            return []
        first, *others = self.progress.values() or [None]
        chunks = [Chunk(self.lease, self.next_event, tuple(self.unsent), self.accepted, first)]
        self.next_event += len(self.unsent)
        chunks += [Chunk(self.lease, self.next_event, progress=other) for other in others]
        self.unsent, self.accepted, self.progress = [], None, {}
        return chunks

    def ending(self, worker_id: str) -> Finished:
        """The job's one ending. Call when `is_complete`."""
        parts = tuple(self.parts[index] for index in sorted(self.parts))
        if self.failure is None:
            return Finished(status="succeeded", parts=parts, worker=worker_id)
        status = self.failure.code if self.failure.code in ("cancelled", "expired") else "failed"
        return Finished.model_validate({"status": status, "parts": parts, "failure": self.failure, "worker": worker_id})


class HeldJobs:
    """All held jobs by id. Whoever cares is told when one goes: `on_freed` may claim, `wait_empty` may leave, and when
    there is no suspect among them any more: `on_cleared` may look for the next.

    Changed on the event loop's thread alone; `get` is for any thread.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Held] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self.on_freed: Callable[[], None] = lambda: None
        self.on_cleared: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._by_id.values()))

    def add(self, held: Held) -> None:
        self._by_id[held.job.id] = held
        self._empty.clear()

    def get(self, job_id: str) -> Held | None:
        return self._by_id.get(job_id)

    def remove(self, job_id: str) -> Held | None:
        held = self._by_id.pop(job_id, None)
        if not self._by_id:
            self._empty.set()
        if held:
            self.on_freed()
            if held.claimed.is_suspect:
                self.on_cleared()
        return held

    @property
    def has_suspect(self) -> bool:
        return any(held.claimed.is_suspect for held in self._by_id.values())

    def of(self, queue: str) -> list[Held]:
        """The jobs of one line: of a lane, the quick ones, inputs, or those of this worker's `own`."""
        return [held for held in self._by_id.values() if held.queue == queue]

    async def wait_empty(self) -> None:
        await self._empty.wait()
