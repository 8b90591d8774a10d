"""Follows jobs and answers with what they say: as Server-Sent Events or as one body, for every family alike.

What is followed is a `Source`: `made` makes jobs that live and die with their request, and who follows a durable job
brings its own. How an answer looks is its `Shape`'s business, and Redis is the bus's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Protocol, Self

import structlog
from starlette.types import Receive, Scope, Send

from api import sse
from api.context import STOPPING, Context, json_response
from api.fleet import Staffing
from api.schemas.answers import failure_of
from api.schemas.ask import Heard, Shape
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


class Source(Protocol):
    """What is followed."""

    @property
    def is_over(self) -> bool:
        """Whether everything has finished and nothing more will be heard."""

    async def next(self, timeout_s: float) -> Heard | None:
        """The next thing said; None after a silence. Raises what ended it, where that is an error."""


class JobResponse:
    """The answer to a synchronous request, as an ASGI response. Its jobs are cancelled when the client goes."""

    def __init__(
        self,
        context: Context,
        jobs: Sequence[Job],
        shape: Shape,
        *,
        is_stream: bool = False,
        workers: Sequence[str | None] | None = None,
    ) -> None:
        """`workers`: for whom alone each job is; None is for whoever takes it."""
        self._context = context
        self._jobs = jobs
        self._workers = workers
        self._shape = shape
        self._is_stream = is_stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"X-Job-Id": self._jobs[0].id} if len(self._jobs) == 1 else {}
        async with made(self._context, self._jobs, self._workers) as source, Departure(receive):
            if self._is_stream:
                settings = self._context.settings
                early = await source.settle(settings.accept_wait_s)
                await Stream(self._shape, headers, settings.keep_alive_s).run(source, send, early)
            else:
                body = self._shape.body(await source.endings())
                await json_response(body, headers=headers)(scope, receive, send)


class Stream:
    """Everything a source says, as one event stream that always ends with an event that says so."""

    def __init__(self, shape: Shape, headers: Mapping[str, str], keep_alive_s: float) -> None:
        self._shape = shape
        self._headers = {**sse.HEADERS, **headers}
        self._keep_alive_s = keep_alive_s

    async def run(self, source: Source, send: Send, early: Sequence[Heard] = ()) -> None:
        """Sends the headers, what was heard `early`, what comes, and the end. Errors are its last event."""
        raw = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        try:
            await self._relay(source, send, early)
        except SlotstreamError as error:
            await _write(send, self._shape.failed(error))
        except asyncio.CancelledError:
            # Either the client is gone, and nobody reads this, or the server stops and owes an ending. Both wait for
            # nothing but our end, which comes at once.
            await _write(send, self._shape.failed(NotReady(STOPPING)))
        except Exception as error:
            log.exception("a stream failed")
            await _write(send, self._shape.failed(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _relay(self, source: Source, send: Send, early: Sequence[Heard]) -> None:
        await _write(send, b"".join(self._shape.say(heard) for heard in early))
        silent_until = time.monotonic() + self._keep_alive_s
        while not source.is_over:
            heard = await source.next(max(0.0, silent_until - time.monotonic()))
            chunk = b"" if heard is None else self._shape.say(heard)
            # Not all that is heard is said: how a long prompt gets on is silence to most.
            if not chunk and time.monotonic() >= silent_until:
                chunk = sse.KEEP_ALIVE
            if chunk:
                await _write(send, chunk)
                silent_until = time.monotonic() + self._keep_alive_s
        await _write(send, self._shape.end())


async def _write(send: Send, chunk: bytes) -> None:
    if chunk:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


class Departure:
    """Cancels the block it stands around when the client goes away; the block then ends without an error.

    Servers tell of a gone client only to those who ask, so one task asks. It reads what comes after the request's
    body, which must have been read before.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_gone = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._was_cancelling = task.cancelling()
        self._watch = asyncio.create_task(self._wait())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._watch.cancel()
        if not self._is_gone:
            return False
        if kind is None:
            # Our cancellation may still be on its way: take it here, so that it hits nothing that comes after.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as late:
                kind = type(late)
        return self._task.uncancel() <= self._was_cancelling and kind is asyncio.CancelledError

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._task.cancel()


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
