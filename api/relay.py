"""Follows jobs and answers with what they say: as a stream or as one body, for every family alike.

What is followed is a `Source`: `made` makes jobs that live and die with their request, and who follows a durable job,
or a batch, brings its own. How an answer looks is its `Shape`'s business, and Redis is the bus's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import structlog
from starlette.types import Receive, Scope, Send

from api.context import LEFT, STOPPING, Context, written_response
from api.framing import Framing
from api.made import made
from api.rendering import rendered
from api.schemas.ask import Origin, Shape
from shared.errors import NotReady, SlotstreamError
from shared.jobs import Job

log = structlog.get_logger(__name__)


Said = TypeVar("Said")
Said_co = TypeVar("Said_co", covariant=True)
Said_contra = TypeVar("Said_contra", contravariant=True)


class Source(Protocol[Said_co]):
    """What is followed."""

    @property
    def is_over(self) -> bool:
        """Whether everything has finished and nothing more will be heard."""

    async def next(self, timeout_s: float) -> Said_co | None:
        """The next thing said; None after a silence. Raises what ended it, where that is an error."""


class Telling(Protocol[Said_contra]):
    """How a stream of it looks: the part of a `Shape` that a stream needs."""

    @property
    def framing(self) -> Framing: ...

    def say(self, heard: Said_contra, /) -> bytes: ...

    def end(self) -> bytes: ...

    def failed(self, error: Exception, /) -> bytes: ...


class JobResponse:
    """The answer to a synchronous request, as an ASGI response. Its jobs are cancelled when the client goes."""

    def __init__(
        self,
        context: Context,
        jobs: Sequence[Job],
        shape: Callable[[Origin], Shape],
        *,
        is_stream: bool = False,
        keep_alive_s: float | None = None,
        workers: Sequence[str | None] | None = None,
    ) -> None:
        """`keep_alive_s`: None is what the server was set to. `workers`: for whom alone each job is; None is for
        whoever takes it."""
        self._context = context
        self._jobs = jobs
        self._workers = workers
        self._shape = shape
        self._is_stream = is_stream
        self._keep_alive_s = context.settings.keep_alive_s if keep_alive_s is None else keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"][LEFT] = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"X-Job-Id": self._jobs[0].id} if len(self._jobs) == 1 else {}
        async with made(self._context, self._jobs, self._workers) as source, Departure(receive):
            shape = self._shape(await self._origin())
            if self._is_stream:
                early = await source.settle(self._context.settings.accept_wait_s)
                await Stream(shape, headers, self._keep_alive_s).run(source, send, early)
            else:
                endings = await source.endings()
                text = await rendered(endings, lambda: shape.body(endings))
                await written_response(text, headers=headers)(scope, receive, send)

    async def _origin(self) -> Origin:
        first = self._jobs[0]
        # What is kept is told of again, and then by the queue's clock.
        record = await self._context.bus.queue.record(first.id) if first.is_durable else None
        return Origin(first.id, first.model, int(record.created_at if record else time.time()))


class Stream(Generic[Said]):
    """Everything a source says, as one stream that always ends with an event that says so."""

    def __init__(self, shape: Telling[Said], headers: Mapping[str, str], keep_alive_s: float) -> None:
        self._shape = shape
        self._framing = shape.framing
        self._headers = {**self._framing.headers, **headers}
        self._keep_alive_s = keep_alive_s

    async def run(self, source: Source[Said], send: Send, early: Sequence[Said] = (), *, opening: bytes = b"") -> None:
        """Sends the headers, an `opening`, what was heard `early`, what comes, and the end. Errors are its last
        event."""
        await self._begin(send)
        try:
            await _write(send, opening)
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

    async def _begin(self, send: Send) -> None:
        raw = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _relay(self, source: Source[Said], send: Send, early: Sequence[Said]) -> None:
        await _write(send, b"".join(self._shape.say(heard) for heard in early))
        silent_until = time.monotonic() + self._keep_alive_s
        while not source.is_over:
            heard = await source.next(max(0.0, silent_until - time.monotonic()))
            chunk = b"" if heard is None else self._shape.say(heard)
            # Not all that is heard is said: how a long prompt gets on is silence to most.
            if not chunk and time.monotonic() >= silent_until:
                chunk = self._framing.keep_alive()
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
