"""One request and its answer, as an ASGI application has them. Knows no parser and no time limits.

Everything here runs on the event loop. Memory counts: thousands of these stream side by side, and what is held for each
is held for hours.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Iterable
from typing import Protocol

import structlog
from starlette.types import ASGIApp, Message, Scope

log = structlog.get_logger(__name__)

HIGH_WATER = 64 * 1024
"""Bytes of a body that may lie here unread before the client is not read from any more."""


class Wire(Protocol):
    """The connection that an exchange is on."""

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """What every answer carries."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Waits until the client has taken enough of what was written, or is gone."""

    def hold(self, is_full: bool) -> None:
        """Reads no more from the client while it `is_full`."""

    def end(self, exchange: Exchange) -> None:
        """The answer is whole, or will never be."""


class Exchange:
    """Both sides of one request: the connection feeds it, the application asks it."""

    __slots__ = (
        "_body",
        "_expects_go_ahead",
        "_has_started",
        "_is_chunked",
        "_is_head",
        "_is_http_10",
        "_is_told_whole",
        "_waiter",
        "_wire",
        "is_answered",
        "is_early",
        "is_gone",
        "is_whole",
        "keeps_alive",
        "scope",
    )

    def __init__(self, wire: Wire, scope: Scope, *, keeps_alive: bool, expects_go_ahead: bool) -> None:
        self.scope = scope
        self.keeps_alive = keeps_alive
        """Whether the connection may carry another request."""
        self.is_whole = False
        """The client has sent all of it."""
        self.is_answered = False
        self.is_early = False
        """It was answered before it was whole: the client may go on sending, and this, too."""
        self.is_gone = False
        """Nobody reads an answer any more."""
        self._wire = wire
        self._expects_go_ahead = expects_go_ahead
        self._body = bytearray()
        self._is_told_whole = False
        self._waiter: asyncio.Future[None] | None = None
        self._has_started = False
        self._is_http_10 = scope["http_version"] == "1.0"
        self._is_head = scope["method"] == "HEAD"
        self._is_chunked = False

    @property
    def has_started(self) -> bool:
        return self._has_started

    # The connection's side.

    def feed(self, piece: bytes) -> None:
        """More of the body. What comes behind the answer is dropped."""
        if self.is_answered or self.is_gone:
            return
        self._body += piece
        if len(self._body) > HIGH_WATER:
            self._wire.hold(True)
        self._wake()

    def complete(self) -> None:
        self.is_whole = True
        self._wake()

    def abandon(self) -> None:
        """The client is gone, or has been told that it is refused."""
        self.is_gone = True
        self._wake()

    async def run(self, app: ASGIApp) -> None:
        """The application's turn. An answer that it leaves unfinished cuts the connection, so that nobody takes what
        there is for whole."""
        try:
            if not self.is_gone:
                await app(self.scope, self.receive, self.send)
        except Exception:
            if not self._has_started:
                log.exception("a request failed", path=self.scope["path"])
        finally:
            self.keeps_alive = self.keeps_alive and self.is_answered
            self._wire.end(self)

    # The application's side.

    async def receive(self) -> Message:
        if self._expects_go_ahead and not self._has_started and not self.is_gone:
            self._expects_go_ahead = False
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._body or self.is_gone or self.is_answered or (self.is_whole and not self._is_told_whole)):
            self._wire.hold(False)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.is_gone or self.is_answered:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        self._is_told_whole = self.is_whole
        self._wire.hold(False)
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    async def send(self, message: Message) -> None:
        if self.is_gone:
            return
        await self._wire.drain()
        if self.is_gone:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], message.get("headers", ()))
        elif not self.is_answered:
            self._continue(message.get("body", b""), message.get("more_body", False))

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._has_started = True
        headers = list(headers)
        names = {name.lower() for name, _ in headers}
        lines = [status_line(status), *map(header_line, [*self._wire.default_headers, *headers])]
        if b"content-length" not in names and not self._is_head and status not in (204, 304):
            if self._is_http_10:
                self.keeps_alive = False  # it knows no chunks: the end of the connection is the end of the body
            else:
                self._is_chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
        if not self.is_whole:
            self.is_early, self.keeps_alive = True, False  # whoever is still sending is not read to the end
        lines.append(b"\r\n" if self.keeps_alive else b"connection: close\r\n\r\n")
        self._wire.write(b"".join(lines))

    def _continue(self, body: bytes, more_body: bool) -> None:
        if body and not self._is_head:
            self._wire.write(b"%x\r\n%b\r\n" % (len(body), body) if self._is_chunked else body)
        if not more_body:
            if self._is_chunked:
                self._wire.write(b"0\r\n\r\n")
            self.is_answered = True
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def header_line(header: tuple[bytes, bytes]) -> bytes:
    return b"%b: %b\r\n" % header


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}
