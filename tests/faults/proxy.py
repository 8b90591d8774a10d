"""A network between processes and their server that can be slow, torn or cut in two."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Self


class Proxy:
    """Listens on loopback and leads to a unix socket. Runs on the loop of whoever opened it."""

    def __init__(self, upstream: Path) -> None:
        self.url = ""
        self.delay_s = 0.0
        """In each direction."""
        self._upstream = upstream
        self._flows = asyncio.Event()
        self._flows.set()
        self._ends: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def cut(self) -> None:
        """From now on nothing arrives, on either side, and nobody is told: connections look open."""
        self._flows.clear()

    def mend(self) -> None:
        self._flows.set()

    def reset(self) -> None:
        """Tears every connection, with an RST where it is TCP."""
        for end in list(self._ends):
            with suppress(OSError):
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_unix_connection(self._upstream)
        except OSError:
            writer.transport.abort()
            return
        self._ends |= {writer, to_server}
        self._pump(reader, to_server)
        self._pump(from_server, writer)

    def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        for work in (self._take(source, line), self._give(line, sink)):
            task = asyncio.create_task(work)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _take(self, source: asyncio.StreamReader, line: asyncio.Queue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            try:
                data = await source.read(65536)
            except OSError:
                data = b""
            line.put_nowait((asyncio.get_running_loop().time() + self.delay_s, data))

    async def _give(self, line: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
        """In order, each after its delay; the end of the source, which is empty, ends the sink."""
        with suppress(OSError):
            while True:
                due, data = await line.get()
                await asyncio.sleep(due - asyncio.get_running_loop().time())
                await self._flows.wait()
                if not data:
                    break
                sink.write(data)
                await sink.drain()
        self._ends.discard(sink)
        sink.close()
