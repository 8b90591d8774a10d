"""Deliveries by all that `slotstream tasks` runs: servers that restart, receivers that hang, processes that die."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from pydantic import SecretStr

from api.outgoing import Outgoing
from api.tasks import arqworker, outbox
from api.tasks.app import stand_up_again
from api.tasks.arqmarks import MARK_S
from api.tasks.webhooks.courier import TRADE, open_courier
from api.webhooks.signing import new_secret
from shared.bus import Bus, open_bus
from shared.errors import BusUnavailable
from shared.settings import TasksSettings
from shared.webhooks import DeliveryStatus, Endpoint, Secret, Webhook
from tests.api.tasks.conftest import RestartableServer
from tests.api.tasks.test_tasks import tasks_process
from tests.api.tasks.webhooks.conftest import Post, ended_job
from tests.receiver import Receiver, hang, receiving

ALLOWED = {"SLOTSTREAM_ALLOW_HOSTS": "127.0.0.1"}


@pytest.fixture
def settings(server: RestartableServer) -> TasksSettings:
    return TasksSettings(redis_url=SecretStr(server.url), allow_hosts=("127.0.0.1",))


@pytest.fixture
async def bus(settings: TasksSettings) -> AsyncIterator[Bus]:
    """That of a server of this test's own."""
    async with open_bus(settings, name="test") as opened:
        yield opened


@pytest.fixture
async def post(bus: Bus) -> AsyncIterator[Post]:
    async with Outgoing.open() as outgoing:
        yield Post(bus, outgoing)


@asynccontextmanager
async def tasks(settings: TasksSettings) -> AsyncIterator[None]:
    """What the tasks role does for webhooks, in this process."""
    async with open_bus(settings, name="tasks") as bus, open_courier(settings, bus) as courier:
        parts: list[Callable[[], Awaitable[None]]] = [
            partial(arqworker.work, settings, TRADE, {"courier": courier}),
            partial(courier.sweep, settings),
            partial(outbox.bridge, bus),
        ]
        running = [asyncio.create_task(stand_up_again("webhooks", part)) for part in parts]
        try:
            yield
        finally:
            for part in running:
                part.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def until_delivered(bus: Bus, endpoint: Endpoint, count: int) -> None:
    async with asyncio.timeout(30):
        while True:
            page = await bus.webhooks.deliveries(endpoint.id, status=DeliveryStatus.DELIVERED, limit=count + 1)
            if len(page.records) == count:
                return
            await asyncio.sleep(0.05)


async def test_the_end_of_a_job_is_told_within_moments(
    settings: TasksSettings, bus: Bus, post: Post, receiver: Receiver
) -> None:
    webhook = Webhook(url=receiver.url("/own"), secret=Secret(value=new_secret()))
    endpoint = await post.endpoint(receiver.url("/tenant"))
    async with tasks(settings):
        await bus.ping()
        job = await ended_job(bus, webhook=webhook)
        ended = time.monotonic()
        calls = await receiver.until_called(2)
        assert time.monotonic() - ended < 5
        await until_delivered(bus, endpoint, 1)
    by_path = {call.path: call for call in calls}
    by_path["/tenant"].check(endpoint.secrets[0].value)
    by_path["/own"].check(webhook.secret.value)
    for call in calls:
        assert (call.event["type"], call.event["data"]) == ("job.succeeded", {"id": job.id})
    assert calls[0].id != calls[1].id
    assert calls[0].body == calls[1].body


async def test_receivers_that_hang_with_thousands_waiting_hold_up_no_other(
    settings: TasksSettings, bus: Bus, post: Post, receiver: Receiver
) -> None:
    async with receiving() as dead, tasks(settings):
        dead.answer = hang
        hanging = [await post.endpoint(dead.url(f"/{number}")) for number in range(20)]
        for endpoint in hanging:
            await post.send(endpoint, 200)
        await dead.until_called(len(hanging))
        good = await post.endpoint(receiver.url())
        for _ in range(3):
            started = time.monotonic()
            await post.send(good, 20)
            await until_delivered(bus, good, len(receiver.calls) + 20 - len(receiver.calls) % 20)
            assert time.monotonic() - started < 5
        assert len(dead.calls) == len(hanging), "where nothing was answered yet one attempt at a time is enough"


async def test_two_of_them_send_each_delivery_once(
    settings: TasksSettings, bus: Bus, post: Post, receiver: Receiver
) -> None:
    endpoints = [await post.endpoint(receiver.url(f"/{number}")) for number in range(4)]
    async with tasks(settings), tasks(settings):
        sent = [await post.send(endpoint, 100) for endpoint in endpoints]
        for endpoint in endpoints:
            await until_delivered(bus, endpoint, 100)
    assert Counter(call.id for call in receiver.calls) == {each.id: 1 for lot in sent for each in lot}


async def test_a_restart_of_the_server_costs_no_delivery(
    settings: TasksSettings, bus: Bus, post: Post, receiver: Receiver, server: RestartableServer
) -> None:
    endpoint = await post.endpoint(receiver.url())
    async with tasks(settings):
        sent = await post.send(endpoint, 5)
        await until_delivered(bus, endpoint, 5)
        server.stop()
        with pytest.raises(BusUnavailable):
            await bus.ping()
        server.start()
        sent += await post.send(endpoint, 5)
        await until_delivered(bus, endpoint, 10)
    assert {call.id for call in receiver.calls} == {delivery.id for delivery in sent}


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)], ids=("killed", "told to leave")
)
async def test_what_was_under_way_when_its_process_ended_is_sent_again_with_the_same_id(
    settings: TasksSettings, bus: Bus, post: Post, receiver: Receiver, number: signal.Signals
) -> None:
    receiver.script = [hang]
    endpoint = await post.endpoint(receiver.url())
    [delivery] = await post.send(endpoint)
    async with tasks_process(settings, **ALLOWED) as process:
        await receiver.until_called(1)
        process.send_signal(number)
        await process.wait()
    ended = time.monotonic()
    async with tasks(settings):
        first, second = await receiver.until_called(2)
        # The mark of a process that was killed must run out; one that was told to leave has taken it back.
        assert time.monotonic() - ended < (MARK_S if number is signal.SIGTERM else MARK_S + 5)
        await until_delivered(bus, endpoint, 1)
    assert first.id == second.id == delivery.id
    assert first.body == second.body
