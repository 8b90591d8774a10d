"""A TCP proxy that makes a network bad: late, half-open, gone, or cut when the work is done and nobody has heard so."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self


class Proxy:
    """One way to the server. Everything about it may be changed at any time."""

    def __init__(self, upstream_port: int) -> None:
        self.delay_s = 0.0
        """Of whatever goes either way."""
        self.n_to_cut = 0
        """Connections to be cut when the reply to a script comes back: it ran, and nobody hears so."""
        self.n_cut = 0
        self._is_flowing = asyncio.Event()
        self._is_flowing.set()
        self._is_closed = False
        self._upstream_port = upstream_port
        self._ends: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        self._hang_up(*self._ends)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def stall(self) -> None:
        """Connections stay open, and nothing moves."""
        self._is_flowing.clear()

    def flow(self) -> None:
        self._is_flowing.set()

    def close(self) -> None:
        """Every connection is reset, and every new one as well."""
        self._is_closed = True
        self.cut_all()

    def open(self) -> None:
        self._is_closed = False

    def cut_all(self) -> None:
        self._hang_up(*self._ends)

    async def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self._is_closed:
            self._hang_up(to_client)
            return
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            self._hang_up(to_client)
            return
        ends = (to_client, to_server)
        self._ends.update(ends)
        asked = asyncio.Event()
        for pump in (self._up(from_client, to_server, asked), self._down(from_server, to_client, asked)):
            task = asyncio.create_task(self._pump(pump, ends))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, pump: asyncio.Future[None], ends: tuple[asyncio.StreamWriter, ...]) -> None:
        try:
            with contextlib.suppress(OSError):
                await pump
        finally:
            self._hang_up(*ends)

    async def _up(self, client: asyncio.StreamReader, server: asyncio.StreamWriter, asked: asyncio.Event) -> None:
        while chunk := await client.read(65536):
            if b"EVALSHA" in chunk:
                asked.set()
            await self._pass_on(chunk, server)

    async def _down(self, server: asyncio.StreamReader, client: asyncio.StreamWriter, asked: asyncio.Event) -> None:
        while chunk := await server.read(65536):
            if asked.is_set() and self.n_to_cut:
                self.n_to_cut -= 1
                self.n_cut += 1
                return
            asked.clear()
            await self._pass_on(chunk, client)

    async def _pass_on(self, chunk: bytes, to: asyncio.StreamWriter) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._is_flowing.wait()
        if to.is_closing():
            raise ConnectionResetError
        to.write(chunk)
        await to.drain()

    def _hang_up(self, *ends: asyncio.StreamWriter) -> None:
        for end in ends:
            self._ends.discard(end)
            end.transport.abort()
