"""Jobs that are made for one request and die with it, heard as one source. Knows no HTTP, and not how answers look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from api.context import Context
from api.fleet import Staffing
from api.schemas.answers import failure_of
from api.schemas.ask import Heard
from shared.bus import Bus, Reader
from shared.errors import BusUnavailable, Expired, NotReady, SlotstreamError, UnknownJob
from shared.events import Accepted, Finished, Tokens
from shared.jobs import Job

log = structlog.get_logger(__name__)

UNSTAFFED_S = 15.0
"""For so long there may be no worker for a job that none has taken yet: one that left may be on its way back."""
LOOK_S = 1.0
"""So often it is looked whether there is one."""
OVERTIME_S = 10.0
"""How long after a deadline the relay still waits for the bus to say so, before it says so itself."""

PATIENCE_S = 60.0
"""How long a wait without keep-alives is; only then is the deadline looked at again."""

N_BUFFERED = 64
"""Events of a request's many jobs that wait for a slow client, before their readers fall back on the log."""

STAFFED = Staffing(is_there=True)

Hear = Callable[[float], Awaitable[Heard | None]]


@asynccontextmanager
async def made(
    context: Context, jobs: Sequence[Job], workers: Sequence[str | None] | None = None
) -> AsyncIterator[MadeJobs]:
    """Enqueues jobs that live no longer than this block: those that have not ended by then are cancelled. With
    `workers` each is for one of them alone, or for whoever takes it."""
    bus = context.bus
    async with AsyncExitStack() as stack:
        # Follow first: a channel keeps nothing for the late.
        readers = [await stack.enter_async_context(bus.log.follow(job.id, expects=True)) for job in jobs]
        hear = _alone(readers[0]) if len(readers) == 1 else await stack.enter_async_context(_merged(readers))
        source = MadeJobs(jobs, hear, lambda: context.fleet.staffing(jobs[0].model))
        try:
            for job, worker in zip(jobs, workers or [None] * len(jobs), strict=True):
                await bus.queue.enqueue(job, worker=worker)
            yield source
        finally:
            if source.running:
                context.spawn(_cancel(bus, [jobs[place].id for place in sorted(source.running)]))


class MadeJobs:
    """The jobs of one request, heard as one source. A failure of any is raised, since the answer needs them all."""

    def __init__(self, jobs: Sequence[Job], hear: Hear, staffing: Callable[[], Staffing] = lambda: STAFFED) -> None:
        self._hear = hear
        self._staffing = staffing
        self._staffed_at = time.monotonic()
        self._model = jobs[0].model
        self._ends_at = time.monotonic() + max(job.deadline_s for job in jobs) + OVERTIME_S
        self._n_jobs = len(jobs)
        self._waiting = set(range(len(jobs)))
        """Places of those that no worker has taken."""
        self.running = set(range(len(jobs)))
        """Places of the jobs that have not ended as far as we know."""

    @property
    def is_over(self) -> bool:
        return not self.running

    async def next(self, timeout_s: float) -> Heard | None:
        """What is said next. None after a while without a word, which may be shorter than was asked for."""
        self._check_staff()
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            raise Expired("The deadline passed before the job was done")
        try:
            heard = await self._hear(min(timeout_s, left_s, LOOK_S if self._waiting else left_s))
        except UnknownJob:
            # Nobody asked for a job by name here: it was ours, and the queue's server has forgotten it.
            raise BusUnavailable("The queue has lost the job") from None
        if heard is not None:
            self._waiting.discard(heard.place)
        if heard is not None and isinstance(heard.event, Finished):
            self.running.discard(heard.place)
            failure = failure_of(heard.event)
            if failure is not None:
                raise failure
        return heard

    def _check_staff(self) -> None:
        """A request is refused where no worker is. One may have left just as it came: then nobody would ever answer.
        Nor will one that failed to load the model, and that is known at once."""
        now = time.monotonic()
        if not self._waiting or (staffing := self._staffing()).is_there:
            self._staffed_at = now
        elif staffing.failure:
            raise NotReady(staffing.failure, retry_after_s=5)
        elif now - self._staffed_at > UNSTAFFED_S:
            raise NotReady(f"No worker serves {self._model!r} now", retry_after_s=5)

    async def settle(self, within_s: float) -> list[Heard]:
        """Waits until all jobs are accepted or one speaks, and gives what was heard: until then errors are plain."""
        heard_all: list[Heard] = []
        waiting = set(self.running)
        ends_at = time.monotonic() + within_s
        while waiting and (left_s := ends_at - time.monotonic()) > 0:
            heard = await self.next(left_s)
            if heard is None:
                continue
            heard_all.append(heard)
            if isinstance(heard.event, Tokens | Finished):
                break
            if isinstance(heard.event, Accepted):
                waiting.discard(heard.place)
        return heard_all

    async def endings(self) -> list[Finished]:
        """Waits for all jobs; their endings in the order of the jobs."""
        endings: dict[int, Finished] = {}
        while not self.is_over:
            heard = await self.next(PATIENCE_S)
            if heard is not None and isinstance(heard.event, Finished):
                endings[heard.place] = heard.event
        return [endings[place] for place in range(self._n_jobs)]


def _alone(reader: Reader) -> Hear:
    async def hear(timeout_s: float) -> Heard | None:
        said = await reader.next(timeout_s)
        return None if said is None else Heard(0, said.number, said.event)

    return hear


@asynccontextmanager
async def _merged(readers: Sequence[Reader]) -> AsyncIterator[Hear]:
    """Several readers as one, each in a task of its own, in the order in which things are said."""
    said: asyncio.Queue[Heard | SlotstreamError] = asyncio.Queue(N_BUFFERED)

    async def pump(place: int, reader: Reader) -> None:
        try:
            async for number, event in reader:
                await said.put(Heard(place, number, event))
        except SlotstreamError as error:
            await said.put(error)

    async def hear(timeout_s: float) -> Heard | None:
        try:
            async with asyncio.timeout(timeout_s):
                heard = await said.get()
        except TimeoutError:
            return None
        if isinstance(heard, SlotstreamError):
            raise heard
        return heard

    pumps = [asyncio.create_task(pump(place, reader)) for place, reader in enumerate(readers)]
    try:
        yield hear
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _cancel(bus: Bus, job_ids: Sequence[str]) -> None:
    for job_id in job_ids:
        try:
            await bus.queue.cancel(job_id)
        except UnknownJob:
            continue  # it was refused, or never got so far
        except SlotstreamError as error:
            log.warning("a job was not cancelled and ends by its deadline", job_id=job_id, reason=error.message)
