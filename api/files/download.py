"""A file's bytes as an answer: whole or the part that was asked for, from the store to the client as fast as it takes
them. Knows no route; what it holds is a piece.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from email.utils import encode_rfc2231
from typing import NamedTuple

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.context import LEFT
from api.relay import Departure
from shared.bus import Bus
from shared.errors import StoreUnavailable, UnknownFile
from shared.files import FileRecord, Purpose
from shared.store import Store

JSONL, BYTES = "application/jsonl", "application/octet-stream"

AT_ONCE = 64 * 1024
"""Bytes of a piece that are handed on together: what a client does not take lies in its connection, besides the piece
that it is a part of."""

_RANGE = re.compile(r"bytes\s*=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})", re.ASCII | re.IGNORECASE)

log = structlog.get_logger(__name__)


class Span(NamedTuple):
    """Of a file, from its byte `start` to before `stop`."""

    start: int
    stop: int


class Download:
    """The answer, given when its route is done."""

    def __init__(
        self, bus: Bus, store: Store, record: FileRecord, *, asked_range: str | None, if_range: str | None
    ) -> None:
        """The last two are headers. Raises HTTP 416."""
        self._bus, self._store, self._record = bus, store, record
        span = None if if_range not in (None, tag_of(record)) else span_of(asked_range, record.n_bytes)
        self._span = span or Span(0, record.n_bytes)
        self._status = 206 if span else 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await Response(status_code=self._status, headers=self._headers())(scope, receive, send)
            return
        scope["state"][LEFT] = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces()) as pieces, Departure(receive):
            piece = await anext(pieces, b"")  # before the headers: what cannot be read is an error
            raw = [(name.lower().encode(), value.encode()) for name, value in self._headers().items()]
            await send({"type": "http.response.start", "status": self._status, "headers": raw})
            while piece:
                for start in range(0, len(piece), AT_ONCE):
                    part = piece[start : start + AT_ONCE]
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                piece = await anext(pieces, b"")
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _headers(self) -> dict[str, str]:
        record, span = self._record, self._span
        is_lines = record.purpose in (Purpose.BATCH, Purpose.BATCH_OUTPUT) or record.filename.endswith(".jsonl")
        headers = {
            "Content-Type": JSONL if is_lines else BYTES,
            "X-Content-Type-Options": "nosniff",
            "Content-Disposition": disposition_of(record.filename),
            "Content-Length": str(span.stop - span.start),
            "Accept-Ranges": "bytes",
            "ETag": tag_of(record),
            "Cache-Control": "private, no-cache",
        }
        if self._status == 206:
            headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{record.n_bytes}"
        if record.is_growing:
            headers["X-Incomplete"] = "true"
        return headers

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        offset = 0
        for piece in self._record.pieces:
            start, stop = max(0, self._span.start - offset), min(piece.n_bytes, self._span.stop - offset)
            if start < stop:
                async with aclosing(self._read(piece.name, Span(start, stop))) as parts:
                    async for part in parts:
                        yield part
            offset += piece.n_bytes

    async def _read(self, name: str, span: Span) -> AsyncGenerator[bytes, None]:
        """Exactly the bytes of the span. Raises StoreUnavailable when the store does not have them, and UnknownFile
        when that is because the file is gone by now."""
        n_bytes = 0
        try:
            async with aclosing(self._store.read(name, span.start, span.stop)) as parts:
                async for part in parts:
                    n_bytes += len(part)
                    yield part
        except UnknownFile:
            n_bytes = 0
        if n_bytes < span.stop - span.start:
            if not self._record.is_growing and await self._bus.files.record(self._record.id) is None:
                raise UnknownFile("There is no such file")
            log.error("bytes of a file are not in the store", setting="--store-url", file=self._record.id, object=name)
            raise StoreUnavailable("The file's bytes are not in the store.")


def span_of(asked: str | None, n_bytes: int) -> Span | None:
    """The part that a Range header asks for. None where it asks for the whole, for several parts, which nobody needs
    to be given, or for what is no range. Raises HTTP 416 where none of it is there."""
    found = _RANGE.fullmatch((asked or "").strip())
    if found is None or found[0].endswith("=-"):
        return None
    first, last = found.groups()
    if not first and not last:
        return None
    if not first:
        start, stop = max(0, n_bytes - int(last)), n_bytes
    else:
        start, stop = int(first), min(n_bytes, int(last) + 1 if last else n_bytes)
        if last and int(last) < start:
            return None
    if start >= stop:
        raise HTTPException(416, f"The file has {n_bytes} bytes", {"Content-Range": f"bytes */{n_bytes}"})
    return Span(start, stop)


def tag_of(record: FileRecord) -> str:
    """What is filed stays as it is, and what grows only gets longer."""
    return f'"{record.id}-{record.n_bytes}"'


def disposition_of(filename: str) -> str:
    """RFC 6266: for old clients what can be said in plain letters, and the name itself as RFC 8187 encodes it, so that
    nothing in it can be taken for anything else."""
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", filename)
    return f'attachment; filename="{plain}"; filename*={encode_rfc2231(filename, "utf-8")}'
