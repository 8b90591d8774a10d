"""A bus on each server, and hands to reach behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import pytest
from redis.asyncio import Redis

from shared.bus import Bus, Claimed, Lease, LeaseKeeper, Wanted, open_bus
from shared.bus.keys import Keys
from shared.events import Tokens
from shared.jobs import Completion, Job
from shared.settings import BusSettings

Found = TypeVar("Found")

ANY = Wanted(quick=8, interactive=64, bulk=64, own=8, inputs=64, bulk_inputs=64)
MOST_PARTITIONS = 64
"""Of any bus in these tests."""


@pytest.fixture
async def bus(bus_settings: BusSettings) -> AsyncIterator[Bus]:
    async with open_bus(bus_settings, name="test") as opened:
        yield opened


@pytest.fixture(params=[1, 4])
def partitions(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
async def wide(bus_settings: BusSettings, partitions: int) -> AsyncIterator[Bus]:
    """A bus of one partition, and one of four."""
    async with open_bus(bus_settings.model_copy(update={"partitions": partitions}), name="test") as opened:
        yield opened


@pytest.fixture
async def behind(bus_settings: BusSettings) -> AsyncIterator[Behind]:
    async with Redis.from_url(bus_settings.redis_url.get_secret_value()) as client:
        yield Behind(client, Keys(bus_settings.namespace, MOST_PARTITIONS))


class Behind:
    """Reaches behind the bus: looks at keys, and lets happen what would take long to wait for."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self.client: Any = client
        self.keys = keys

    async def field(self, job_id: str, name: str) -> str | None:
        value = await self.client.hget(self.keys.job(job_id), name)
        return value.decode() if value is not None else None

    async def fields(self, job_id: str) -> dict[str, str]:
        found = await self.client.hgetall(self.keys.job(job_id))
        return {name.decode(): value.decode() for name, value in found.items()}

    async def heard(self, worker: str) -> bool:
        """Whether the worker has ever said that it lives."""
        return bool(await self.client.hexists(self.keys.beats(0), worker))

    async def let_lease_run_out(self, job_id: str) -> None:
        """As if its worker had been silent for a day."""
        stream, entry = await self.client.hmget(self.keys.job(job_id), "stream", "entry")
        await self.client.xclaim(
            stream, "workers", "nobody", min_idle_time=0, message_ids=[entry], idle=86_400_000, justid=True
        )

    async def let_deadline_pass(self, job_id: str) -> None:
        await self.client.hset(self.keys.job(job_id), "deadline_ms", 1)
        prefix = self.keys.prefix_of(job_id)
        await self.client.zadd(f"{prefix}due", {job_id: 1})

    async def pending(self, job_id: str) -> int:
        """Delivered entries in the stream of a job that nobody has acknowledged."""
        stream = await self.field(job_id, "stream")
        return int((await self.client.xpending(stream, "workers"))["pending"])

    async def log(self, job_id: str) -> list[tuple[str, dict[str, str]]]:
        return [
            (entry.decode(), {name.decode(): value.decode() for name, value in fields.items()})
            for entry, fields in await self.client.xrange(self.keys.log(job_id))
        ]


def a_job(bus: Bus, **fields: Any) -> Job:
    fields = {"model": "m", "request": Completion(prompts=("Hello",), n_predict=8)} | fields
    return Job(id=bus.queue.new_job_id(), **fields)


async def queued(bus: Bus, **fields: Any) -> Job:
    job = a_job(bus, **fields)
    await bus.queue.enqueue(job)
    return job


def keeper(settings: BusSettings, worker: str) -> LeaseKeeper:
    """A living worker, as far as the bus can tell. To be entered."""
    return LeaseKeeper(settings, worker, is_alive=lambda: True, on_cancel=lambda _: None, on_lost=lambda _: None)


async def claimed(bus: Bus, worker: str = "w1", *, sweep: bool = False) -> Claimed:
    """The one job that there is to claim."""
    [one] = await bus.queue.claim(worker, "m", ANY, sweep=sweep)
    return one


def tokens(*texts: str) -> tuple[Tokens, ...]:
    return tuple(Tokens(ids=(len(text),), text=text) for text in texts)


def other_lease(lease: Lease) -> Lease:
    """One that the same worker might have had before."""
    worker, epoch, _ = lease.token.rsplit(":", 2)
    return Lease(lease.job_id, f"{worker}:{epoch}:0000000000000000")


async def eventually(look: Callable[[], Awaitable[Found]], within_s: float = 10.0) -> Found:
    """What `look` finds, as soon as it finds something."""
    async with asyncio.timeout(within_s):
        while not (found := await look()):  # noqa: ASYNC110 - what happens in the server sets no event here
            await asyncio.sleep(0.01)
        return found
