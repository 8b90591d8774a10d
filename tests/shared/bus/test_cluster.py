"""A Cluster does what one server does: the claims about the queue and the log hold there too, and when slots move."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.asyncio import Redis
from redis.crc import key_slot

from shared.bus import Bus, Chunk, Lease, LeaseKeeper, Verdict, open_bus
from shared.bus.embedded import server_binary
from shared.bus.keys import Keys
from shared.bus.taskpool import task_pool
from shared.errors import BusUnavailable
from shared.events import Finished
from shared.ids import Kind, partition_in
from shared.jobs import Job, partition_of
from shared.settings import BusSettings, ConfigError, TasksSettings
from shared.webhooks import DeliveryStatus
from tests.conftest import keys_that_stay
from tests.shared.bus.conftest import ANY, MOST_PARTITIONS, Behind, a_job, eventually, tokens
from tests.shared.bus.servers import Node, running, until, until_replicated
from tests.shared.bus.test_batch_holds import *  # noqa: F403
from tests.shared.bus.test_batch_lines import *  # noqa: F403
from tests.shared.bus.test_batches import *  # noqa: F403
from tests.shared.bus.test_queue import *  # noqa: F403
from tests.shared.bus.test_tokenlog import *  # noqa: F403
from tests.shared.bus.test_webhooks import a_delivery, an_endpoint, attempted

N_SLOTS = 16384


class Nodes:
    """Three primaries, each with a third of the slots."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def owner(self, partition: int) -> Node:
        """At the start."""
        return self.nodes[slot_of(partition) * len(self.nodes) // N_SLOTS]

    def meet(self) -> None:
        for i, node in enumerate(self.nodes):
            ask = node.client.execute_command
            ask("CLUSTER", "ADDSLOTSRANGE", i * N_SLOTS // 3, (i + 1) * N_SLOTS // 3 - 1)
            ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            ask("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port, self.nodes[0].bus_port)
        for node in self.nodes:
            until(lambda node=node: self._is_whole(node))

    def move(self, partition: int, source: Node, target: Node) -> None:
        """Returns when it has arrived."""
        name = target.client.execute_command("CLUSTER", "MYID").decode()
        source.client.execute_command(
            "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot_of(partition), slot_of(partition), "NODE", name
        )
        until(lambda: _takes(target, partition))

    def replicate(self, primary: Node, replica: Node) -> None:
        """Returns when it has all of it."""
        replica.client.execute_command("CLUSTER", "MEET", "127.0.0.1", primary.port, primary.bus_port)
        name = primary.client.execute_command("CLUSTER", "MYID").decode()
        until(lambda: name in str(replica.client.execute_command("CLUSTER", "NODES")))
        replica.client.execute_command("CLUSTER", "REPLICATE", name)
        until(lambda: replica.client.info("replication").get("master_link_status") == "up")

    def _is_whole(self, node: Node) -> bool:
        info = node.client.execute_command("CLUSTER", "INFO")
        state = info if isinstance(info, dict) else dict(line.split(":") for line in info.decode().split())
        return state["cluster_state"] == "ok" and state["cluster_known_nodes"] == str(len(self.nodes))


CLUSTER_OPTIONS = {"cluster_enabled": "yes", "cluster_node_timeout": 1000, "cluster_replica_validity_factor": 0}


def slot_of(partition: int) -> int:
    return int(key_slot(f"p{partition}".encode()))


def _takes(node: Node, partition: int) -> bool:
    try:
        node.client.get(f"{{p{partition}}}")
    except redis.ResponseError:
        return False
    return True


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("cluster")
    some = [Node(folder / str(i), binary=server_binary(), **CLUSTER_OPTIONS) for i in range(3)]
    with running(*some):
        found = Nodes(some)
        found.meet()
        yield found


@pytest.fixture
def bus_settings(nodes: Nodes) -> Iterator[BusSettings]:
    settings = BusSettings(redis_url=nodes.url, namespace=f"t{secrets.token_hex(6)}", lease_s=5.0, partitions=1)
    yield settings
    leaked = []
    for node in (node for node in nodes.nodes if node.is_running):
        if keys := list(node.client.scan_iter(match=f"{settings.namespace}:*", count=1000)):
            leaked += keys_that_stay(node.client, keys)
        for key in keys:
            node.client.delete(key)
    assert not leaked


class Anywhere:
    """A client of the node that has the first partition, and for a key of another, of that one's."""

    def __init__(self, nodes: Nodes, clients: list[Redis]) -> None:
        self._nodes = nodes
        self._clients = clients

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            found = re.search(r"{p(\d+)}", str(arguments[0])) if arguments else None
            owner = self._nodes.owner(int(found[1]) if found else 0)
            return getattr(self._clients[self._nodes.nodes.index(owner)], name)(*arguments, **options)

        return call


@pytest.fixture
async def behind(nodes: Nodes, bus_settings: BusSettings) -> AsyncIterator[Behind]:
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(Redis(port=node.port)) for node in nodes.nodes]
        yield Behind(Anywhere(nodes, clients), Keys(bus_settings.namespace, MOST_PARTITIONS))


N_PARTITIONS = 8


@pytest.fixture
def spread_settings(bus_settings: BusSettings) -> BusSettings:
    return bus_settings.model_copy(update={"partitions": N_PARTITIONS})


@pytest.fixture
async def spread(spread_settings: BusSettings) -> AsyncIterator[Bus]:
    async with open_bus(spread_settings, name="test") as opened:
        yield opened


async def one_in_each(bus: Bus) -> list[Job]:
    jobs = {partition_of((job := a_job(bus)).id): job for _ in range(40 * N_PARTITIONS)}
    assert len(jobs) == N_PARTITIONS
    await asyncio.gather(*map(bus.queue.enqueue, jobs.values()))
    return list(jobs.values())


async def test_partitions_lie_on_all_nodes_and_work_as_one(
    nodes: Nodes, spread: Bus, spread_settings: BusSettings
) -> None:
    jobs = await one_in_each(spread)
    assert {nodes.owner(partition_of(job.id)) for job in jobs} == set(nodes.nodes)
    claimed = await spread.queue.claim("w1", "m", ANY)
    assert {each.job.id for each in claimed} == {job.id for job in jobs}
    for node in nodes.nodes:
        node.client.script_flush()
    async with AsyncExitStack() as followed:
        readers = [await followed.enter_async_context(spread.log.follow(each.job.id)) for each in claimed]
        for each in claimed:
            channel = f"{spread_settings.namespace}:{{p{partition_of(each.job.id)}}}:live:{each.job.id}"
            [(_, n_listeners)] = nodes.owner(partition_of(each.job.id)).client.pubsub_numsub(channel)
            assert n_listeners == 1, "there renew.lua looks whether anybody still listens"
        verdicts = await spread.queue.append([Chunk(each.lease, 1, tokens("word")) for each in claimed])
        assert verdicts == [Verdict.OK] * N_PARTITIONS
        for each in claimed:
            assert await spread.queue.finish(each.lease, Finished(status="succeeded"), 2)
        for reader in readers:
            assert [event.number async for event in reader] == [1, 2]


async def test_leases_are_kept_in_every_partition(spread: Bus, spread_settings: BusSettings) -> None:
    settings = spread_settings.model_copy(update={"lease_s": 0.4})
    await one_in_each(spread)
    claimed = await spread.queue.claim("w1", "m", ANY)
    lost: list[Lease] = []
    with LeaseKeeper(settings, "w1", is_alive=lambda: True, on_cancel=lambda _: None, on_lost=lost.append) as keeper:
        for each in claimed:
            keeper.hold(each.lease)
        await asyncio.sleep(3 * settings.lease_s)
        assert not lost
    for each in claimed:
        assert await spread.queue.finish(each.lease, Finished(status="succeeded"), 1)


async def test_webhooks_are_kept_in_every_partition(nodes: Nodes, spread: Bus) -> None:
    made = [await an_endpoint(spread, tenant=f"tenant {number}") for number in range(4 * N_PARTITIONS)]
    assert {nodes.owner(partition_in(endpoint.id, Kind.ENDPOINT)) for endpoint in made} == set(nodes.nodes)
    deliveries = [a_delivery(endpoint) for endpoint in made]
    await spread.webhooks.post(deliveries)
    assert set(await spread.webhooks.due(100)) == {endpoint.id for endpoint in made}
    for endpoint, delivery in zip(made, deliveries, strict=True):
        assert [taken.id for taken in await spread.webhooks.take(endpoint.id, 10)] == [delivery.id]
        await attempted(spread, delivery, DeliveryStatus.DELIVERED)
        await spread.webhooks.replay(delivery.id)
        await spread.webhooks.disable(endpoint.id, "x")
        await spread.webhooks.delete(endpoint.id, endpoint.tenant)
    assert await spread.webhooks.due(100) == []


async def test_every_node_is_looked_at(nodes: Nodes, spread: Bus) -> None:
    await spread.check_server()
    nodes.nodes[2].client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigError, match="maxmemory-policy"):
            await spread.check_server()
    finally:
        nodes.nodes[2].client.config_set("maxmemory-policy", "noeviction")


async def test_a_partition_moves_under_load_and_nothing_is_lost(
    nodes: Nodes, spread: Bus, spread_settings: BusSettings
) -> None:
    """In one step, as Valkey 9 and Redis 8.4 can."""
    old, new = nodes.owner(0), next(node for node in nodes.nodes if node is not nodes.owner(0))
    channel = f"{spread_settings.namespace}:{{p0}}:wake:m"
    n_done = 0
    is_over = asyncio.Event()
    lost: list[Lease] = []
    keeper = LeaseKeeper(
        spread_settings.model_copy(update={"lease_s": 1.0}),
        "w1",
        is_alive=lambda: True,
        on_cancel=lambda _: None,
        on_lost=lost.append,
    )

    async def order() -> None:
        """A client: a job, and all that it says, again and again."""
        nonlocal n_done
        while not is_over.is_set():
            job = a_job(spread)
            async with spread.log.follow(job.id, expects=True) as reader:
                await spread.queue.enqueue(job)
                assert [event.number async for event in reader] == [1, 2, 3]
            n_done += 1

    async def work() -> None:
        while True:
            for each in await spread.queue.claim("w1", "m", ANY):
                keeper.hold(each.lease)
                for number in (1, 2):
                    assert await spread.queue.append([Chunk(each.lease, number, tokens("word"))]) == [Verdict.OK]
                keeper.drop(each.job.id)
                assert await spread.queue.finish(each.lease, Finished(status="succeeded"), 3)
            await asyncio.sleep(0)

    async def some_more() -> None:
        enough = n_done + 50
        await eventually(lambda: _is(lambda: n_done >= enough), 30.0)

    with keeper:
        async with asyncio.TaskGroup() as group:
            worker = group.create_task(work())
            wakes = spread.queue.wakes("w1", "m")
            await anext(wakes)
            orders = [group.create_task(order()) for _ in range(8)]
            await some_more()
            for source, target in ((old, new), (new, old)):
                await asyncio.to_thread(nodes.move, 0, source, target)
                await some_more()
                await eventually(lambda at=target: _is(lambda: at.client.pubsub_numsub(channel)[0][1] == 1))
            is_over.set()
            await asyncio.wait(orders)
            worker.cancel()
            await wakes.aclose()
    assert not lost


async def _is(look: Callable[[], bool]) -> bool:
    return look()


def test_arq_needs_a_server_of_its_own(nodes: Nodes) -> None:
    with pytest.raises(ConfigError, match=r"^--tasks-redis-url: "):
        task_pool(TasksSettings(redis_url=nodes.url), name="arq")
    with pytest.raises(ConfigError, match=r"^--tasks-redis-url: must begin"):
        task_pool(TasksSettings(redis_url=nodes.url, tasks_redis_url="http://h"), name="arq")
    assert task_pool(TasksSettings(redis_url=nodes.url, tasks_redis_url="redis://h"), name="arq")


async def test_a_server_that_is_no_cluster_is_said(tmp_path: Path) -> None:
    with running(node := Node(tmp_path / "lone", binary=server_binary())):
        async with open_bus(BusSettings(redis_url=f"redis+cluster://127.0.0.1:{node.port}"), name="test") as bus:
            with pytest.raises(BusUnavailable, match="cluster support disabled"):
                await bus.ping()


async def test_a_replica_takes_over_from_a_killed_node(nodes: Nodes, tmp_path: Path, spread: Bus) -> None:
    """Last here, since the Cluster is another one afterwards."""
    replica = Node(tmp_path / "replica", binary=server_binary(), **CLUSTER_OPTIONS)
    with running(replica):
        dying = nodes.owner(0)
        await asyncio.to_thread(nodes.replicate, dying, replica)
        jobs = await one_in_each(spread)
        claimed = await spread.queue.claim("w1", "m", ANY)
        await asyncio.to_thread(until_replicated, dying, replica)
        dying.kill()

        async def said() -> bool:
            try:
                verdicts = await spread.queue.append([Chunk(each.lease, 1, tokens("word")) for each in claimed])
            except BusUnavailable:
                return False
            return verdicts == [Verdict.OK] * len(jobs)

        await eventually(said, 30.0)
        for each in claimed:
            assert await spread.queue.finish(each.lease, Finished(status="succeeded"), 2)
