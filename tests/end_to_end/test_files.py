"""Files between real processes: what a crash leaves, and what a large one costs."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from api.tasks.storekeeper import SPARED_S, Storekeeper
from shared.bus import open_bus
from shared.store import open_store
from tests.api.raw import connected
from tests.stack import Role, Stack

MB = 1_000_000


@pytest_asyncio.fixture
async def stack(valkey_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    stack = Stack(valkey_url, tmp_path)
    stack.environment["SLOTSTREAM_STORE_URL"] = str(tmp_path / "store")
    yield stack
    await stack.close()


def partial_files(folder: Path) -> list[Path]:
    return list((folder / "store" / "partial").iterdir())


async def test_an_api_that_is_killed_in_an_upload_leaves_no_file_and_the_sweep_takes_the_rest(
    stack: Stack, tmp_path: Path
) -> None:
    api = await stack.start_api()
    async with connected(str(stack.http.base_url)) as client:
        client.send(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=xyz\r\n"
            b"Content-Length: 9000000\r\n\r\n--xyz\r\n"
            b'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n' + b"x" * 3 * MB
        )

        async def has_begun() -> bool:
            return any(path.stat().st_size > MB for path in partial_files(tmp_path))

        await stack.until(has_begun, api)
        api.signal(signal.SIGKILL)
        await api.wait()

    await stack.start_api()
    assert (await stack.http.get("/v1/files")).json()["data"] == []
    assert len(partial_files(tmp_path)) == 1
    url = stack.environment["SLOTSTREAM_STORE_URL"]
    async with open_bus(stack.bus_settings, name="test") as bus, open_store(url) as store:
        await Storekeeper(bus, store).sweep(time.time() + 2 * SPARED_S)
        assert [name async for name, _ in store.names("files/")] == []
    assert partial_files(tmp_path) == []


def memory_mb(role: Role) -> float:
    """What the process has in memory, and has had at most."""
    status = Path(f"/proc/{role.process.pid}/status").read_text()
    [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(peak) / 1000


@pytest.mark.slow
async def test_memory_stays_flat_over_a_large_upload_and_download(stack: Stack) -> None:
    api = await stack.start_api()
    piece, n_pieces = b"0123456789abcde\n" * 62_500, 200

    async def body() -> AsyncIterator[bytes]:
        yield b'--xyz\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        for _ in range(n_pieces):
            yield piece
        yield b"\r\n--xyz--\r\n"

    headers = {"Content-Type": "multipart/form-data; boundary=xyz"}
    small = {"purpose": "batch"}
    await stack.http.post("/v1/files", data=small, files={"file": ("small", b"x")})
    before = memory_mb(api)
    started = time.monotonic()
    file = (await stack.http.post("/v1/files", content=body(), headers=headers, timeout=300)).json()
    uploaded = time.monotonic()
    assert file["bytes"] == n_pieces * len(piece)
    n_bytes = 0
    async with stack.http.stream("GET", f"/v1/files/{file['id']}/content") as response:
        async for chunk in response.aiter_bytes():
            n_bytes += len(chunk)
            if n_bytes < 20 * MB:
                await asyncio.sleep(0.05)  # a reader that is slower than the store
    assert n_bytes == file["bytes"]
    print(f"up {200 / (uploaded - started):.0f} MB/s, down {200 / (time.monotonic() - uploaded):.0f} MB/s")
    assert memory_mb(api) - before < 24
