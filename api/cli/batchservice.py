"""Files and batches as a client sees them: OpenAI's two APIs, and what a slotstream adds. Knows the protocol alone.

A batch is asked for under an idempotency key. Files have none, nor have the batches of other services: where an answer
may have been lost, it is looked first whether they are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import aiohttp
from pydantic import ValidationError

from api.cli.events import Event, EventBuffer
from api.cli.service import (
    SILENCE_S,
    Away,
    Look,
    Refusal,
    Service,
    ServiceLost,
    fault_in,
    is_path_unknown,
    json_in,
    said_of,
)
from shared.wire import Wire

EVENTS_OF_NONE = "/v1/batches/batch_0_000000000000000000000000/events"
"""Of an id that no batch has: what is said of them tells a slotstream from others."""

NEWEST = 100
"""How far back it is looked for what may be there already."""

GOODBYE_S = 10.0
"""For what is asked only to leave less behind."""

View = TypeVar("View", bound=Wire)


class Kind(Enum):
    """What a service is."""

    SLOTSTREAM = auto()
    OTHER = auto()
    """Speaks as OpenAI does: one path for all lines of a file, records at the end alone."""


class NoEvents(Exception):
    """The service does not tell of a batch as it goes on."""


class Fault(Wire):
    """What is wrong with a file or a line of it."""

    message: str = ""
    line: int | None = None


class Faults(Wire):
    data: list[Fault] = []


class Counts(Wire):
    """Lines."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Usage(Wire):
    """Tokens."""

    input_tokens: int = 0
    output_tokens: int = 0


class Standing(Wire):
    """How far a batch is. Rates and the time left are None where the service does not tell them."""

    status: str
    request_counts: Counts | None = None
    usage: Usage | None = None
    eta_s: float | None = None
    tokens_per_s: float | None = None


class BatchView(Standing):
    id: str
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: Faults | None = None

    @property
    def is_ended(self) -> bool:
        return self.status in ("completed", "failed", "expired", "cancelled")

    @property
    def why_failed(self) -> str:
        """The first fault, for people."""
        fault = next(iter(self.errors.data if self.errors else []), None)
        if fault is None:
            return "it does not say why"
        return f"line {fault.line}: {fault.message}" if fault.line is not None else fault.message

    @property
    def result_files(self) -> list[str]:
        return [file_id for file_id in (self.output_file_id, self.error_file_id) if file_id]


class FileView(Wire):
    id: str
    filename: str = ""
    bytes: int = 0


class Upload(NamedTuple):
    """A file on its way."""

    path: Path
    name: str
    """That no other file has."""
    n_bytes: int


class _Batches(Wire):
    data: list[BatchView]


class _Files(Wire):
    data: list[FileView]


class BatchService(Service):
    """A running slotstream's files and batches, or those of another service."""

    _kind: Kind | None = None

    async def check(self) -> None:
        """Raise ServiceLost when nobody answers at the URL, or none that takes batches, or not with this key."""
        look = await self._first_look(EVENTS_OF_NONE)
        if look.status != 429 and look.status < 502:  # else it is there, and has to be waited for
            self._kind = await self._recognised(look)

    async def recognise(self) -> Kind:
        """What the service is. Raises ServiceLost."""
        if self._kind is None:
            self._kind = await self._recognised(await self._patiently(lambda: self._look_at(EVENTS_OF_NONE)))
        return self._kind

    async def _recognised(self, look: Look) -> Kind:
        if look.status == 404 and not is_path_unknown(404, look.content):
            return Kind.SLOTSTREAM
        path = "/v1/batches"
        status, content = await self._patiently(lambda: self._look_at(f"{path}?limit=1"))
        if status != 200 or _read(_Batches, content) is None:
            raise ServiceLost(f"{self.url} is not a slotstream, nor has it batches: GET {path} answered {status}")
        return Kind.OTHER

    async def upload(self, content: Upload, *, is_again: bool, on_sent: Callable[[float], None]) -> str | Refusal:
        """The id of the file. `is_again`: it may be there already; `on_sent` hears which part has been sent."""
        may_be_there = is_again

        async def once() -> str | Refusal:
            nonlocal may_be_there
            if may_be_there and (found := await self._find_file(content)):
                return found
            may_be_there = True
            return await self._send(content, on_sent)

        return await self._patiently(once)

    async def has_file(self, file_id: str) -> bool:
        status, _ = await self._patiently(lambda: self._look_at(f"/v1/files/{file_id}"))
        return status != 404

    async def create(self, key: str, fields: Mapping[str, Any], *, is_again: bool) -> BatchView | Refusal:
        """Make the batch that `fields` describe, or find the one made earlier."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        payload = json.dumps(fields).encode()
        may_be_there = is_again

        async def once() -> BatchView | Refusal:
            nonlocal may_be_there
            if (
                may_be_there
                and self._kind is not Kind.SLOTSTREAM
                and (found := await self._find_batch(fields["input_file_id"]))
            ):
                return found
            may_be_there = True
            async with self._answer("POST", "/v1/batches", data=payload, headers=headers) as response:
                content = await response.read()
                if response.status < 300 and (batch := _read(BatchView, content)):
                    return batch
                return self._refusal(response, content)

        return await self._patiently(once)

    async def look(self, batch_id: str) -> BatchView | None:
        """The batch as it stands; None when the service does not know it (any more)."""
        return await self._patiently(lambda: self._show(batch_id))

    async def cancel(self, batch_id: str) -> None:
        """Have no more lines of it run. What has ended, or is not known, is left as it is."""

        async def once() -> None:
            async with self._answer("POST", f"/v1/batches/{batch_id}/cancel"):
                pass

        await self._patiently(once)

    async def follow(
        self,
        batch_id: str,
        *,
        after: int,
        on_record: Callable[[bytes], None],
        on_standing: Callable[[Standing], None],
    ) -> BatchView | None:
        """Every record behind the first `after`, and the batch when it has ended; None when the service does not know
        it (any more). Raises NoEvents."""

        def note(event: Event) -> None:
            nonlocal after
            if event.name == "line":
                on_record(event.data)
                after = event.number or after
            elif event.name == "progress" and (standing := _read(Standing, event.data)):
                on_standing(standing)

        async def once() -> BatchView | None:
            headers = {"Last-Event-ID": str(after)} if after else {}
            async with self._answer("GET", f"/v1/batches/{batch_id}/events", headers=headers) as response:
                match response.status:
                    case 200 if response.content_type == "text/event-stream":
                        return await self._read_events(response, note)
                    case 204:  # it has ended, and there is nothing after that event
                        pass
                    case 404 if not is_path_unknown(404, await response.read()):
                        return None
                    case 404 | 405 | 501 | 200:
                        raise NoEvents
                    case status:
                        raise Away(f"the service answered {status}")
            return await self._show(batch_id)

        return await self._patiently(once)

    async def lines(self, file_id: str, on_line: Callable[[bytes], None]) -> bool:
        """Each line of a file, some again when the connection was lost. False when there is no such file."""

        async def once() -> bool:
            async with self._answer("GET", f"/v1/files/{file_id}/content") as response:
                if response.status == 404:
                    return False
                if response.status != 200:
                    raise Away(f"the service answered {response.status}")
                async for line in _lines(response):
                    on_line(line)
                return True

        return await self._patiently(once)

    async def forget(self, file_id: str) -> None:
        """Delete a file, if that can be had at once."""
        with contextlib.suppress(Away, ServiceLost, TimeoutError):
            async with asyncio.timeout(GOODBYE_S), self._answer("DELETE", f"/v1/files/{file_id}"):
                pass

    async def _look_at(self, path: str) -> Look:
        async with self._answer("GET", path) as response:
            return Look(response.status, await response.read())

    async def _show(self, batch_id: str) -> BatchView | None:
        async with self._answer("GET", f"/v1/batches/{batch_id}") as response:
            content = await response.read()
            if response.status == 404:
                return None
            if response.status == 200 and (batch := _read(BatchView, content)):
                return batch
            raise Away(f"the service answered {response.status}{said_of(fault_in(content))}")

    async def _send(self, content: Upload, on_sent: Callable[[float], None]) -> str | Refusal:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SILENCE_S) as patience:

                def note(n_bytes: int) -> None:
                    with contextlib.suppress(RuntimeError):  # an answer may come before all is sent
                        patience.reschedule(loop.time() + SILENCE_S)
                    on_sent(n_bytes / content.n_bytes)

                file = _Sent(content.path, lambda n_bytes: loop.call_soon_threadsafe(note, n_bytes))
                form = aiohttp.FormData()
                form.add_field("purpose", "batch")
                form.add_field("file", file, filename=content.name, content_type="application/jsonl")
                async with self._answer("POST", "/v1/files", data=form) as response:
                    raw = await response.read()
                    if response.status < 300 and (view := _read(FileView, raw)):
                        return view.id
                    return self._refusal(response, raw)
        except TimeoutError:
            raise Away(f"it has taken nothing for {SILENCE_S:.0f} s") from None

    async def _find_file(self, content: Upload) -> str | None:
        status, raw = await self._look_at(f"/v1/files?purpose=batch&order=desc&limit={NEWEST}")
        files = _read(_Files, raw) if status == 200 else None
        wanted = (content.name, content.n_bytes)
        return next((file.id for file in (files.data if files else []) if (file.filename, file.bytes) == wanted), None)

    async def _find_batch(self, file_id: str) -> BatchView | None:
        status, content = await self._look_at(f"/v1/batches?limit={NEWEST}")
        batches = _read(_Batches, content) if status == 200 else None
        return next((batch for batch in (batches.data if batches else []) if batch.input_file_id == file_id), None)

    async def _read_events(
        self, response: aiohttp.ClientResponse, on_event: Callable[[Event], None]
    ) -> BatchView | None:
        """The batch of the last event; None when it went meanwhile. Raises Away when there is none."""
        events = EventBuffer()
        async for piece in response.content.iter_any():
            self._note_good()
            for event in events.push(piece):
                if event.name == "done" and (batch := _read(BatchView, event.data)):
                    return batch
                if event.name == "error":
                    fault = fault_in(event.data)
                    if fault.get("type") == "not_found_error":
                        return None
                    raise Away(f"the service broke off{said_of(fault)}")
                on_event(event)
        raise Away("the service closed a stream before its end")

    def _refusal(self, response: aiohttp.ClientResponse, content: bytes) -> Refusal:
        if response.status >= 400:
            return Refusal(response.status, response.headers.get("X-Request-Id"), json_in(content))
        return super()._refusal(response, content)


class _Sent(io.FileIO):
    """A file that tells how far it was read, from whatever thread does."""

    def __init__(self, path: Path, on_read: Callable[[int], object]) -> None:
        super().__init__(path, "rb")
        self._on_read = on_read

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size)
        self._on_read(self.tell())
        return piece


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Those that are not blank."""
    rest = bytearray()
    async for piece in response.content.iter_any():
        *ended, begun = piece.split(b"\n")
        for line in ended:
            whole = bytes(rest) + line
            rest.clear()
            if whole.strip():
                yield whole.strip()
        rest += begun
    if rest.strip():
        yield bytes(rest.strip())


def _read(view: type[View], content: bytes) -> View | None:
    try:
        return view.from_json(content)
    except ValidationError:
        return None
