"""The jobs API as a client sees it: ask, wait for the end, patient with a service that is full or away.

Knows the protocol and nothing of files. A job is asked for with an idempotency key, so every call here may be
repeated: after a lost reply, a restart of the API or a restart of this process.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import aiohttp
from pydantic import ConfigDict, ValidationError

from shared.wire import Wire

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_RETRY_AFTER_S = 0.2, 10.0, 60.0
SILENCE_S = 60.0
"""A stream that says nothing for so long, not even a keep-alive, is opened again."""
TRIES_OF_A_FAULT = 3
"""Answers of 500 to the same question, after which it is taken to be the question's fault."""


NO_JOB = "job_0_000000000000000000000000"
"""An id that no job has: what is said of it tells a slotstream from others."""


class ServiceLost(Exception):
    """The service cannot be worked with. The message is one sentence."""


class JobView(Wire):
    """A job as the API shows it; what is not named here is kept too. Times are Unix seconds."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str = "job"
    status: str
    endpoint: str = ""
    model: str = ""
    priority: str = ""
    created_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    deadline_at: int | None = None
    attempts: int = 0
    position: int | None = None
    eta_s: float | None = None
    waiting_for: str | None = None
    usage: Any = None
    result: Any = None
    error: Any = None
    metadata: dict[str, str] = {}

    @property
    def is_ended(self) -> bool:
        return self.status not in ("queued", "running")


class PageView(Wire):
    """Some jobs, newest first."""

    data: list[JobView]
    last_id: str | None
    has_more: bool


class Refusal(NamedTuple):
    """An HTTP answer that says no, and would say no again."""

    status: int
    request_id: str | None
    body: Any

    def __str__(self) -> str:
        return f"the service answered {self.status}{_message_of(_fault_of(self.body))}"


class _Away(Exception):
    """No answer, or one that says to come later."""

    def __init__(self, why: str, *, after_s: float | None = None, is_busy: bool = False) -> None:
        super().__init__(why)
        self.why, self.after_s, self.is_busy = why, after_s, is_busy


@dataclass(slots=True)
class Pause:
    """Pauses that double, with jitter; a pause that the service asked for goes first."""

    next_s: float = FIRST_PAUSE_S

    def seconds(self, asked_s: float | None) -> float:
        pause_s = self.next_s if asked_s is None else max(0.05, min(asked_s, LONGEST_RETRY_AFTER_S))
        self.next_s = min(self.next_s * 2, LONGEST_PAUSE_S)
        return pause_s * random.uniform(0.8, 1.2)


class Service:
    """A running slotstream. `patience_s`: how long it may be away altogether before ServiceLost is raised; `tell` hears
    why a call waits, once for each reason."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        connector: aiohttp.TCPConnector | None = None,
        patience_s: float = 600.0,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1").rstrip("/")  # clients of OpenAI have it in their base URL
        self.trouble: str | None = None
        """Why calls are waiting just now, for a display."""
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._connector = connector
        self._patience_s = patience_s
        self._tell = tell
        self._away_since: float | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=self._connector or aiohttp.TCPConnector(limit=0),  # the caller bounds the jobs in flight
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENCE_S),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def check(self) -> None:
        """Raise ServiceLost when nobody answers at the URL, or not a slotstream's jobs API, or not with this key."""
        path = f"/v1/jobs/{NO_JOB}"
        try:
            async with self._session.get(self.url + path) as response:
                content = await response.read()
        except aiohttp.InvalidURL:
            raise ServiceLost(f"{self.url} is not a URL") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServiceLost(f"nothing answers at {self.url}: {_why(error)} (see --url)") from None
        if response.status in (401, 403):
            raise self._refused_key()
        is_away = response.status == 503 and _fault(content)  # its queue is: that is waited for
        if not is_away and (response.status != 404 or is_path_unknown(404, content)):
            raise ServiceLost(f"{self.url} is not a slotstream: GET {path} answered {response.status}")

    async def ask(self, key: str, endpoint: str, body: dict[str, Any]) -> JobView | Refusal:
        """Make the bulk job, or find the one made earlier with the same key."""
        return await self.submit(key, {"endpoint": endpoint, "body": body, "priority": "bulk"})

    async def submit(self, key: str, fields: Mapping[str, Any]) -> JobView | Refusal:
        """Make the job that `fields` describe, or find the one made earlier with the same key."""
        payload = json.dumps(fields).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}

        async def once() -> JobView | Refusal:
            async with self._answer("POST", "/v1/jobs", data=payload, headers=headers) as response:
                return _job_or_refusal(response, await response.read())

        return await self._patiently(once)

    async def look(self, job_id: str) -> JobView | None:
        """The job as it stands; None when the service does not know it (any more)."""
        return await self._patiently(lambda: self._show("GET", f"/v1/jobs/{job_id}"))

    async def cancel(self, job_id: str) -> JobView | None:
        """The job after the request to cancel it; None when the service does not know it (any more)."""
        return await self._patiently(lambda: self._show("POST", f"/v1/jobs/{job_id}/cancel"))

    async def page(self, query: Mapping[str, str]) -> PageView | Refusal:
        """Some of the jobs, as `GET /v1/jobs` lists them."""

        async def once() -> PageView | Refusal:
            async with self._answer("GET", "/v1/jobs", params=query) as response:
                content = await response.read()
                if response.status == 200 and (page := _page(content)):
                    return page
                return _refusal(response, content)

        return await self._patiently(once)

    async def wait(self, job_id: str, *, on_token: Callable[[], None]) -> JobView | None:
        """The job when it has ended; None when the service does not know it (any more)."""

        def note(event: Event) -> None:
            if event.name == "token":
                on_token()

        return await self.follow(job_id, on_event=note)

    async def follow(self, job_id: str, *, after: int = 0, on_event: Callable[[Event], None]) -> JobView | None:
        """Everything that the job says after event `after`, once each, and the job when it has ended; None when the
        service does not know it (any more)."""

        def note(event: Event) -> None:
            nonlocal after
            after = event.number or after
            on_event(event)

        async def once() -> JobView | None:
            headers = {"Last-Event-ID": str(after)} if after else {}
            async with self._answer("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
                if response.status == 200:
                    return await _read_events(response, self._note_good, note)
                if response.status not in (204, 404):
                    raise _Away(f"the service answered {response.status}")
            # 204: it has ended, and there is nothing after that event.
            return await self._show("GET", f"/v1/jobs/{job_id}") if response.status == 204 else None

        job = await self._patiently(once)
        # A terminal event without the result, or none at all, is no ending: the job's own record decides.
        if job is not None and job.status == "succeeded" and job.result is None:
            return await self.look(job_id)
        return job

    async def _show(self, method: str, path: str) -> JobView | None:
        async with self._answer(method, path) as response:
            if response.status == 404:
                return None
            found = _job_or_refusal(response, await response.read())
            if isinstance(found, Refusal):
                raise _Away(f"the service answered {found.status}")
            return found

    @asynccontextmanager
    async def _answer(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is a yes or a no; everything else is _Away or ServiceLost."""
        try:
            async with self._session.request(method, self.url + path, **more) as response:
                if response.status in (401, 403):
                    raise self._refused_key()
                if response.status in (404, 405) and is_path_unknown(response.status, await response.read()):
                    raise ServiceLost(f"{self.url} is not a slotstream: {method} {path} answered {response.status}")
                if response.status == 429 or response.status >= 502:
                    raise _Away(
                        f"the service answered {response.status}{_message_of(_fault(await response.read()))}",
                        after_s=retry_after(response.headers.get("Retry-After", "")),
                        is_busy=response.status == 429,
                    )
                yield response
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise _Away(_why(error)) from None

    async def _patiently(self, once: Callable[[], Awaitable[T]]) -> T:
        pause = Pause()
        n_faults = 0
        while True:
            try:
                answer = await once()
            except _Away as away:
                self._note_trouble(away)
                await asyncio.sleep(pause.seconds(away.after_s))
                continue
            self._note_good()
            if isinstance(answer, Refusal) and answer.status == 500 and n_faults < TRIES_OF_A_FAULT - 1:
                n_faults += 1
                await asyncio.sleep(pause.seconds(None))
                continue
            return answer

    def _refused_key(self) -> ServiceLost:
        return ServiceLost(f"{self.url} refuses the API key (see --api-key)")

    def _note_good(self) -> None:
        self.trouble = self._away_since = None

    def _note_trouble(self, away: _Away) -> None:
        if self._tell and self.trouble != away.why:
            self._tell(away.why)
        self.trouble = away.why
        if away.is_busy:  # it is there: however long its queue is full, that is no reason to give up
            self._away_since = None
            return
        now = time.monotonic()
        self._away_since = self._away_since or now
        if now - self._away_since > self._patience_s:
            raise ServiceLost(f"the service has been away for {self._patience_s:.0f} s: {away.why}") from None


class Event(NamedTuple):
    name: str
    number: int
    """0 when it has none."""
    data: bytes


class EventBuffer:
    """Server-Sent Events out of pieces of any size. Comments and half an event at the end say nothing."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def push(self, piece: bytes) -> list[Event]:
        start = max(0, len(self._rest) - 1)  # an end may lie across two pieces
        self._rest += piece
        if self._rest.find(b"\n\n", start) < 0:
            return []
        *blocks, rest = bytes(self._rest).split(b"\n\n")
        self._rest = bytearray(rest)
        return [event for block in blocks if (event := _event(block))]


def _event(block: bytes) -> Event | None:
    name, number, data = "message", 0, b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            name = value.decode(errors="replace")
        elif field == b"id" and value.isdigit():
            number = int(value)
        elif field == b"data":
            data = data + b"\n" + value if data else value
    return Event(name, number, data) if data else None


async def _read_events(
    response: aiohttp.ClientResponse, on_sign: Callable[[], None], on_event: Callable[[Event], None]
) -> JobView:
    """The job of the terminal event. Raises _Away when there is none."""
    events = EventBuffer()
    async for piece in response.content.iter_any():
        on_sign()
        for event in events.push(piece):
            if event.name == "token":
                on_event(event)
            elif event.name in ("done", "error") and (job := _job(event.data)):
                on_event(event)
                return job
    raise _Away("the service closed a stream before its end")


def _job_or_refusal(response: aiohttp.ClientResponse, content: bytes) -> JobView | Refusal:
    if response.status in (200, 202) and (job := _job(content)):
        return job
    return _refusal(response, content)


def _refusal(response: aiohttp.ClientResponse, content: bytes) -> Refusal:
    request_id = response.headers.get("X-Request-Id")
    body = _json(content)
    if response.status >= 400 and isinstance(body, dict) and "error" in body:
        return Refusal(response.status, request_id, body)
    if response.status == 413:  # a proxy in between has limits and words of its own
        error = {"code": 413, "message": "the request is too large", "type": "invalid_request_error"}
        return Refusal(413, request_id, {"error": error})
    raise ServiceLost(f"{response.url.origin()} is not a slotstream: it answered {response.status}")


def _job(content: bytes) -> JobView | None:
    try:
        return JobView.from_json(content)
    except ValidationError:
        return None


def _page(content: bytes) -> PageView | None:
    try:
        return PageView.from_json(content)
    except ValidationError:
        return None


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def is_path_unknown(status: int, content: bytes) -> bool:
    """Whether a 404 or 405 is about the path; a slotstream also says 404 of a job or a model that is not there."""
    fault = _fault(content)
    is_of_a_job = fault.get("type") == "not_found_error" and fault.get("message") != "File Not Found"
    return status != 404 or not (is_of_a_job or fault.get("type") == "model_not_found")


def _fault(content: bytes) -> dict[str, Any]:
    """The error object of an answer, empty when it has none."""
    return _fault_of(_json(content))


def _fault_of(body: Any) -> dict[str, Any]:
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _message_of(fault: dict[str, Any]) -> str:
    message = fault.get("message")
    return f": {message}" if message else ""


def retry_after(header: str) -> float | None:
    """Seconds of a Retry-After header, which may also be a date; None when there is none or it makes no sense."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return None
    return seconds if seconds >= 0 else None


def _why(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", error.certificate_error)
        return f"its certificate is not trusted, {reason}; SSL_CERT_FILE may name a file of certificates that are"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__
