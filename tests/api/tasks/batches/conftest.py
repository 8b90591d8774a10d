"""Batches on a real server and in a real folder, worked on step by step in this process."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from api.fleet import Fleet
from api.images import Images
from api.outgoing import Outgoing
from api.tasks.batches.step import Work
from shared.batches import Batch, segment_pieces
from shared.bus import Bus, Hold, open_bus
from shared.files import FileRecord, Piece, Purpose, object_of
from shared.settings import TasksSettings
from shared.store import Store, open_store
from tests.api.conftest import RedisProcess
from tests.api.scripted_worker import ScriptedWorker
from tests.api.tasks.batches.mortal import Life, mortal

PATIENCE_S = 20.0
LEASE_S = 30.0


@pytest.fixture
def settings(redis_process: RedisProcess, tmp_path: Path) -> TasksSettings:
    return TasksSettings(
        redis_url=SecretStr(redis_process.url),
        namespace=f"t{secrets.token_hex(6)}",
        lease_s=30,
        store_url=SecretStr(str(tmp_path / "store")),
        allow_hosts=("127.0.0.1",),
        allow_image_urls=True,
    )


@pytest.fixture
async def bus(settings: TasksSettings) -> AsyncIterator[Bus]:
    async with open_bus(settings, name="test") as opened:
        yield opened


@pytest.fixture
async def worker(bus: Bus) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(bus, n_slots=8) as scripted:
        yield scripted


async def until(condition: Callable[[], Awaitable[object]], patience_s: float = PATIENCE_S) -> None:
    """Looks often: what it waits for may last for a moment only."""
    async with asyncio.timeout(patience_s):
        while not await condition():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.002)


class Bench:
    """Makes batches, and works on them."""

    def __init__(self, bus: Bus, store: Store, settings: TasksSettings, images: Images) -> None:
        self.bus, self.store, self.settings, self.images = bus, store, settings, images
        self.work = self.another(settings)

    def another(self, settings: TasksSettings | None = None, life: Life | None = None) -> Work:
        """As of another process: it knows nothing of what this one has done. It may have to die."""
        bus, store = mortal(self.bus, self.store, life) if life else (self.bus, self.store)
        return Work(bus, store, self.images, settings or self.settings)

    async def uploaded(self, content: bytes, tenant: str = "default") -> str:
        file_id = self.bus.files.new_id()
        await self.store.put(object_of(file_id), content)
        piece = Piece(name=object_of(file_id), n_bytes=len(content))
        record = FileRecord(
            id=file_id, tenant=tenant, filename="in.jsonl", purpose=Purpose.BATCH, created_at=0, pieces=(piece,)
        )
        await self.bus.files.create(record, 3600)
        return file_id

    async def made(self, lines: Sequence[dict[str, Any]] | bytes, *, window_s: float = 3600, **fields: Any) -> str:
        content = lines if isinstance(lines, bytes) else jsonl(lines)
        given: dict[str, Any] = {
            "tenant": "default",
            "endpoint": "*",
            "completion_window": f"{window_s:g}s",
            "window_s": window_s,
            "input_file_id": await self.uploaded(content),
        }
        batch = Batch(id=self.bus.batches.new_id(), **(given | fields))
        await self.bus.batches.create(batch)
        return batch.id

    async def held(self, batch_id: str, lease_s: float = LEASE_S) -> Hold:
        """As soon as it is due."""
        holds: list[Hold] = []

        async def is_held() -> bool:
            due = [each for each in await self.bus.batches.due() if each.batch_id == batch_id]
            holds.extend([hold for each in due if (hold := await self.bus.batches.hold(*each, lease_s))])
            return bool(holds)

        await until(is_held)
        return holds[0]

    async def step(self, batch_id: str, work: Work | None = None, lease_s: float = LEASE_S) -> Batch:
        """One step, and no rest after it; the batch afterwards."""
        hold = await self.held(batch_id, lease_s)
        await (work or self.work).step(hold)
        await self.bus.batches.rest(hold, 0)
        return await self.batch(batch_id)

    async def ended(self, batch_id: str, work: Work | None = None) -> Batch:
        """As many steps as it takes."""
        batch = await self.batch(batch_id)
        async with asyncio.timeout(PATIENCE_S):
            while not batch.status.is_ended:
                batch = await self.step(batch_id, work)
        return batch

    async def batch(self, batch_id: str) -> Batch:
        batch = await self.bus.batches.record(batch_id)
        assert batch is not None
        return batch

    async def records(self, batch_id: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Those of the lines that succeeded and of those that failed, as far as they are collected."""
        outputs: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for segment in await self.bus.batches.segments(batch_id):
            for found, piece in zip((outputs, errors), segment_pieces(batch_id, segment), strict=True):
                if piece.n_bytes:
                    content = b"".join([part async for part in self.store.read(piece.name)])
                    assert len(content) == piece.n_bytes
                    found += [json.loads(line) for line in content.splitlines()]
        return outputs, errors


@asynccontextmanager
async def bench_of(settings: TasksSettings) -> AsyncIterator[Bench]:
    async with (
        open_bus(settings, name="test") as bus,
        open_store(settings.store_url.get_secret_value()) as store,
        Outgoing.open(settings.allow_hosts) as outgoing,
    ):
        fleet = Fleet(bus)
        await fleet.look()
        yield Bench(bus, store, settings, Images(fleet, outgoing, settings))


@pytest.fixture
async def bench(settings: TasksSettings, worker: ScriptedWorker) -> AsyncIterator[Bench]:
    async with bench_of(settings) as made:
        yield made


@pytest.fixture
async def idle_bench(settings: TasksSettings) -> AsyncIterator[Bench]:
    """Where no worker has ever been."""
    async with bench_of(settings) as made:
        yield made


def say(custom_id: str, prompt: str = "say a|b", **body: Any) -> dict[str, Any]:
    """A line that the scripted worker answers with what stands in its prompt."""
    return line(custom_id, "/completion", prompt=prompt, **body)


def line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(lines: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def names(records: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(record["custom_id"] for record in records)
