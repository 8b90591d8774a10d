"""Forms that are read while they come, beside all else that the process does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.requests import Request

from api.context import READING_AT_ONCE
from api.files.multipart import received
from shared.store import open_store

N_UPLOADS, N_PIECES = 50, 20
HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
TAIL = b"\r\n--x--\r\n"


async def test_uploads_that_come_as_fast_as_they_can_leave_every_round_of_the_loop_to_others(tmp_path: Path) -> None:
    rounds = 0
    taken: Counter[int] = Counter()
    """Pieces that were asked for, by the round of the event loop."""

    async def others() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (HEAD, *[b"a" * 1000] * N_PIECES, TAIL):
            taken[rounds] += 1
            yield piece

    async with open_store(str(tmp_path)) as store:
        reading = asyncio.Semaphore(READING_AT_ONCE)

        async def upload(name: str) -> int:
            request = Request({"type": "http", "headers": [(b"content-type", b"multipart/form-data; boundary=x")]})
            request.stream = pieces  # type: ignore[method-assign]  # no client is as fast
            async with received(request, store, reading, part="file", name=name, limit=10**6) as form:
                return form.n_bytes

        beside = asyncio.create_task(others())
        assert await asyncio.gather(*(upload(f"f{n}") for n in range(N_UPLOADS))) == [1000 * N_PIECES] * N_UPLOADS
        beside.cancel()
    first = min(taken)
    most = max(count for round, count in taken.items() if round > first + 1)
    # Who had a turn asks for its next piece, and others have theirs: all of that may fall between two looks.
    assert most <= 4 * READING_AT_ONCE < N_UPLOADS
