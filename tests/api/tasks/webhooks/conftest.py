"""A bus, receivers of its deliveries, and hands that bring the future forward."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from api.outgoing import Limits, Outgoing
from api.tasks.webhooks.pace import Paces
from api.tasks.webhooks.turn import Turn
from api.webhooks.events import Event
from api.webhooks.signing import new_secret
from shared.bus import Bus, Wanted, open_bus
from shared.bus.keys import Keys
from shared.events import Answer, Finished, StopType
from shared.ids import Kind, new_id
from shared.jobs import Completion, Job, JobStatus, Lane
from shared.settings import BusSettings
from shared.webhooks import EVENT_TYPES, Delivery, Endpoint, Secret
from tests.receiver import Receiver, receiving

PRINTED = "é 😀"
"""In the id that events of these tests tell: what was signed and what was sent must be the same bytes."""


@pytest.fixture
async def bus(embedded_settings: BusSettings) -> AsyncIterator[Bus]:
    async with open_bus(embedded_settings, name="test") as opened:
        yield opened


@pytest.fixture
async def future(embedded_settings: BusSettings) -> AsyncIterator[Future]:
    async with Redis.from_url(embedded_settings.redis_url.get_secret_value()) as client:
        yield Future(client, Keys(embedded_settings.namespace, embedded_settings.partitions))


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


@pytest.fixture
async def post(bus: Bus) -> AsyncIterator[Post]:
    async with Outgoing.open(("127.0.0.1",), limits=Limits(0, 0)) as outgoing:
        yield Post(bus, outgoing)


class Future:
    """Brings forward what would take long to wait for."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self.client: Any = client
        self._keys = keys

    async def keys(self, pattern: str) -> list[bytes]:
        """Of this test's bus, whose partition they lie in."""
        found: list[bytes] = await self.client.keys(f"{self._keys.prefix(0)}{pattern}")
        return found

    async def brings(self, endpoint: Endpoint) -> None:
        """All that waits for an endpoint is due, and it has rested enough."""
        schedule = self._keys.schedule(endpoint.id)
        for delivery in await self.client.zrange(schedule, 0, -1):
            await self.client.zadd(schedule, {delivery: 1})
        await self.client.hdel(self._keys.endpoint(endpoint.id), "rest_ms")
        await self.client.zadd(self._keys.schedules(0), {endpoint.id: 1}, xx=True)

    async def ages(self, endpoint: Endpoint, hours: float) -> None:
        """Its first failure and its deliveries are that much older."""
        earlier = -round(hours * 3_600_000)
        await self.client.hincrby(self._keys.endpoint(endpoint.id), "failing_ms", earlier)
        for delivery in await self.client.zrange(self._keys.schedule(endpoint.id), 0, -1):
            await self.client.hincrby(self._keys.delivery(delivery.decode()), "created_ms", earlier)


class Post:
    """Endpoints, what is sent to them, and turns of theirs in this process."""

    def __init__(self, bus: Bus, outgoing: Outgoing) -> None:
        self._bus, self.outgoing = bus, outgoing
        self.paces = Paces()

    async def endpoint(self, url: str, **fields: Any) -> Endpoint:
        tenant = fields.get("tenant", "default")
        made = {"event_types": EVENT_TYPES, "secrets": (Secret(value=new_secret()),), "tenant": tenant} | fields
        return await self._bus.webhooks.create(Endpoint(id=self._bus.webhooks.new_id(tenant), url=url, **made))

    async def send(self, endpoint: Endpoint, count: int = 1) -> list[Delivery]:
        deliveries = [an_event().to(endpoint.id) for _ in range(count)]
        await self._bus.webhooks.post(deliveries)
        return deliveries

    async def turn(self, endpoint: Endpoint, *, timeout_s: float = 5.0) -> None:
        await Turn(self._bus, self.outgoing, self.paces, endpoint.id, timeout_s=timeout_s).run()

    async def state(self, delivery: Delivery) -> Delivery:
        found = await self._bus.webhooks.delivery(delivery.id)
        assert found is not None
        return found

    async def whole(self, endpoint: Endpoint) -> Endpoint:
        found = await self._bus.webhooks.record(endpoint.id)
        assert found is not None
        return found


def an_event() -> Event:
    return Event(new_id(Kind.EVENT, 0), "job.succeeded", f"{PRINTED} {secrets.token_hex(4)}", 1_800_000_000.0)


SUCCEEDED = Finished(status="succeeded")
CUT = Finished(
    status="succeeded",
    parts=(Answer(text="x", ids=(1,), prompt="x", prompt_tokens=1, stop_type=StopType.LIMIT, seed=1),),
)


async def ended_job(bus: Bus, finished: Finished | None = SUCCEEDED, **fields: Any) -> Job:
    """A durable job that ended: by a worker's word, or cancelled while it waited."""
    made = {"model": "m", "request": Completion(prompts=("x",)), "lane": Lane.BULK, "is_durable": True} | fields
    job = Job(id=bus.queue.new_job_id(), **made)
    await bus.queue.enqueue(job)
    if finished is None:
        await bus.queue.cancel(job.id)
    else:
        [claimed] = await bus.queue.claim("w1", "m", Wanted(0, 0, 1))
        assert await bus.queue.finish(claimed.lease, finished, 1)
    record = await bus.queue.record(job.id)
    assert record is not None and record.status is JobStatus(finished.status if finished else "cancelled")
    return job
