"""Receivers of webhooks on loopback: they note what they are sent and answer as a test wants it."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from aiohttp import web
from pydantic import SecretStr

from api.webhooks.signing import verify

PATIENCE_S = 30.0


class Call(NamedTuple):
    """One request, as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float
    """Unix seconds."""

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.body)
        return event

    def check(self, *secrets: SecretStr) -> None:
        """Raises Forged unless it is signed with one of these, now."""
        verify(secrets, self.headers, self.body, now=time.time())


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Receiver:
    """`script` is what the next calls get, one after the other; `answer` what all others get."""

    def __init__(self, base: str) -> None:
        self._base = base
        self.calls: list[Call] = []
        self.script: list[Answer] = []
        self.answer: Answer = status(200)
        self._came = asyncio.Event()

    def url(self, path: str = "/hook") -> str:
        return self._base + path

    async def until_called(self, count: int) -> list[Call]:
        """The first `count` calls, once they are there."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.calls) < count:
                self._came.clear()
                await self._came.wait()
        return self.calls[:count]

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(Call(request.path_qs, dict(request.headers), await request.read(), time.time()))
        self._came.set()
        return await (self.script.pop(0) if self.script else self.answer)(request)


@asynccontextmanager
async def receiving(trust: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver on a port of its own; with `trust` it speaks https."""
    app = web.Application(client_max_size=100_000_000)
    runner = web.AppRunner(app, shutdown_timeout=0.05, access_log=None)
    scheme = "https" if trust else "http"
    receivers: list[Receiver] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        return await receivers[0].serve(request)

    app.router.add_post("/{path:.*}", serve)  # a test beside us may look for its server on a port that is ours now
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust)
    await site.start()
    receivers.append(Receiver(f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"))
    try:
        yield receivers[0]
    finally:
        await runner.cleanup()


def status(code: int, text: str = "", **headers: str) -> Answer:
    """`retry_after` is the header `Retry-After`."""

    async def answer(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=code, text=text, headers=named)

    return answer


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError("nobody waits so long")


async def endless(request: web.Request) -> web.StreamResponse:
    """200, and a body that never ends."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65536)


async def drip(request: web.Request) -> web.StreamResponse:
    """200, and a body that comes a byte at a time."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x")
        await asyncio.sleep(0.05)


Says = Callable[[asyncio.StreamWriter], Awaitable[None]]


class RawReceiver:
    """Reads a whole request and then says whatever it likes, which need not be HTTP."""

    def __init__(self, says: Says) -> None:
        self._says = says
        self.n_calls = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            await reader.readexactly(length)
            self.n_calls += 1
            await self._says(writer)
        writer.close()


@asynccontextmanager
async def raw_receiving(says: Says) -> AsyncIterator[RawReceiver]:
    receiver = RawReceiver(says)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    try:
        yield receiver
    finally:
        server.close()


async def nothing(_: asyncio.StreamWriter) -> None:
    """It heard all of it, and the answer is lost."""


async def no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\x00\xff\r\n\r\n")
    await writer.drain()


async def slow_head(writer: asyncio.StreamWriter) -> None:
    """An answer whose head never ends."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(10**6):
        writer.write(b"X-%d: y\r\n" % number)
        await writer.drain()
        await asyncio.sleep(0.05)


async def long_head(writer: asyncio.StreamWriter) -> None:
    """Headers without end, as fast as they are taken."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(10**6):
        writer.write(b"X-%d: %s\r\n" % (number, b"y" * 4000))
        await writer.drain()


async def informing(writer: asyncio.StreamWriter) -> None:
    """Interim answers without end."""
    for _ in range(10**6):
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)
