"""The jobs API as a client sees it: submit, look, list, cancel, and follow to the end. Knows the protocol alone.

A job is asked for with an idempotency key, so every call here may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from pydantic import ConfigDict, ValidationError

from api.cli.events import Event, EventBuffer
from api.cli.service import Away, Refusal, Service, ServiceLost, fault_in, is_path_unknown
from shared.wire import Wire

NO_JOB = "job_0_000000000000000000000000"
"""An id that no job has: what is said of it tells a slotstream from others."""


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


class JobService(Service):
    """A running slotstream's jobs."""

    async def check(self) -> None:
        """Raise ServiceLost when nobody answers at the URL, or not a slotstream's jobs API, or not with this key."""
        path = f"/v1/jobs/{NO_JOB}"
        status, content = await self._first_look(path)
        is_away = status == 503 and fault_in(content)  # its queue is: that is waited for
        if not is_away and (status != 404 or is_path_unknown(404, content)):
            raise self._foreign("GET", path, status)

    async def submit(self, key: str, fields: Mapping[str, Any]) -> JobView | Refusal:
        """Make the job that `fields` describe, or find the one made earlier with the same key."""
        payload = json.dumps(fields).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}

        async def once() -> JobView | Refusal:
            async with self._known("POST", "/v1/jobs", data=payload, headers=headers) as response:
                return self._job_or_refusal(response, await response.read())

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
            async with self._known("GET", "/v1/jobs", params=query) as response:
                content = await response.read()
                if response.status == 200 and (page := _page(content)):
                    return page
                return self._refusal(response, content)

        return await self._patiently(once)

    async def follow(self, job_id: str, *, after: int = 0, on_event: Callable[[Event], None]) -> JobView | None:
        """Everything that the job says after event `after`, once each, and the job when it has ended; None when the
        service does not know it (any more)."""

        def note(event: Event) -> None:
            nonlocal after
            after = event.number or after
            on_event(event)

        async def once() -> JobView | None:
            headers = {"Last-Event-ID": str(after)} if after else {}
            async with self._known("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
                if response.status == 200:
                    return await _read_events(response, self._note_good, note)
                if response.status not in (204, 404):
                    raise Away(f"the service answered {response.status}")
            # 204: it has ended, and there is nothing after that event.
            return await self._show("GET", f"/v1/jobs/{job_id}") if response.status == 204 else None

        job = await self._patiently(once)
        # A terminal event without the result, or none at all, is no ending: the job's own record decides.
        if job is not None and job.status == "succeeded" and job.result is None:
            return await self.look(job_id)
        return job

    async def _show(self, method: str, path: str) -> JobView | None:
        async with self._known(method, path) as response:
            if response.status == 404:
                return None
            found = self._job_or_refusal(response, await response.read())
            if isinstance(found, Refusal):
                raise Away(f"the service answered {found.status}")
            return found

    @asynccontextmanager
    async def _known(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer of a path that a slotstream has."""
        async with self._answer(method, path, **more) as response:
            if response.status in (404, 405) and is_path_unknown(response.status, await response.read()):
                raise self._foreign(method, path, response.status)
            yield response

    def _foreign(self, method: str, path: str, status: int) -> ServiceLost:
        return ServiceLost(f"{self.url} is not a slotstream: {method} {path} answered {status}")

    def _job_or_refusal(self, response: aiohttp.ClientResponse, content: bytes) -> JobView | Refusal:
        if response.status in (200, 202) and (job := _job(content)):
            return job
        return self._refusal(response, content)


async def _read_events(
    response: aiohttp.ClientResponse, on_sign: Callable[[], None], on_event: Callable[[Event], None]
) -> JobView:
    """The job of the terminal event. Raises Away when there is none."""
    events = EventBuffer()
    async for piece in response.content.iter_any():
        on_sign()
        for event in events.push(piece):
            if event.name == "token":
                on_event(event)
            elif event.name in ("done", "error") and (job := _job(event.data)):
                on_event(event)
                return job
    raise Away("the service closed a stream before its end")


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
