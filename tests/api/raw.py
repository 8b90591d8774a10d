"""A client that sends what it likes, byte for byte, and reads what comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.content)["error"]
        return error


@dataclass
class Raw:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> Answer:
        """The next one, which has a length or lasts until the end."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
        length = headers.get("content-length")
        content = await (self.reader.read() if length is None else self.reader.readexactly(int(length)))
        return Answer(int(line.split(" ")[1]), headers, content)

    async def rest(self) -> bytes:
        """What comes until the server closes."""
        return await self.reader.read()


@contextlib.asynccontextmanager
async def connected(url: str, **more: Any) -> AsyncIterator[Raw]:
    there = httpx.URL(url)
    reader, writer = await asyncio.open_connection(there.host, there.port, **more)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
