"""What a download holds of a file while its client takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, ClassVar

from starlette.types import Message

from api.context import LEFT
from api.files.download import AT_ONCE, Download
from shared.files import FileRecord, Piece, Purpose
from shared.store import PIECE

N_PIECES = 4


class Counted(bytes):
    """Knows how many of it there are."""

    n_alive: ClassVar[int] = 0

    def __new__(cls, content: bytes) -> Counted:
        cls.n_alive += 1
        return super().__new__(cls, content)

    def __del__(self) -> None:
        type(self).n_alive -= 1


class CountedStore:
    async def read(self, name: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        for place in range(start, stop, PIECE):
            yield Counted(place.to_bytes(4) * (PIECE // 4))


async def test_a_client_that_takes_nothing_costs_one_piece_however_much_it_was_given() -> None:
    file = Piece(name="files/a", n_bytes=N_PIECES * PIECE)
    record = FileRecord(id="file-0_a", tenant="t", filename="a", purpose=Purpose.BATCH, created_at=0.0, pieces=(file,))
    download = Download(None, CountedStore(), record, asked_range=None, if_range=None)  # type: ignore[arg-type]
    scope: dict[str, Any] = {"method": "GET", "state": {}}
    given = bytearray()

    async def send(message: Message) -> None:
        body = message.get("body", b"")
        assert len(body) <= AT_ONCE, "what a connection is given is kept there until its client takes it"
        assert Counted.n_alive <= 1, "beside it only the piece that this is a part of"
        given.extend(body)

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()

    await download(scope, receive, send)
    await scope["state"][LEFT](scope, receive, send)
    assert given == b"".join(place.to_bytes(4) * (PIECE // 4) for place in range(0, N_PIECES * PIECE, PIECE))
    assert Counted.n_alive == 0
