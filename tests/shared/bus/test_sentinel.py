"""Behind sentinels the primary may change under everything that is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from shared.bus import Bus, Claimed, LeaseKeeper, Reader, Verdict, open_bus
from shared.bus.claims import Chunk
from shared.bus.taskpool import task_pool
from shared.errors import BusUnavailable
from shared.events import Finished, Tokens
from shared.settings import TasksSettings
from tests.shared.bus.conftest import ANY, eventually, queued, tokens
from tests.shared.bus.servers import Node, running, until, until_replicated

NAME, PASSWORD, SENTINELS_PASSWORD = "the-primary", "p@ss:w/rd", "s#ntinel"
FAILOVER_S = 30.0
"""It takes two or three."""


class Watched:
    """A primary, a replica that has all of it, and a sentinel that knows both."""

    def __init__(self, folder: Path) -> None:
        self.primary = Node(folder / "first", password=PASSWORD, masterauth=PASSWORD)
        replicaof = f"127.0.0.1 {self.primary.port}"
        self.replica = Node(folder / "second", password=PASSWORD, masterauth=PASSWORD, replicaof=replicaof)
        self.sentinel = Node(folder / "sentinel", password=SENTINELS_PASSWORD, is_sentinel=True)

    @property
    def url(self) -> str:
        """The first sentinel that it names is not there."""
        where = f"127.0.0.1:1,127.0.0.1:{self.sentinel.port}/{NAME}/0?sentinel_password={quote(SENTINELS_PASSWORD)}"
        return f"redis+sentinel://:{quote(PASSWORD, safe='')}@{where}"

    def watch(self) -> None:
        """Begin when the replica is there to be found."""
        until(lambda: self.primary.client.info("replication").get("slave0", {}).get("state") == "online")
        ask = self.sentinel.client.execute_command
        ask("SENTINEL", "MONITOR", NAME, "127.0.0.1", self.primary.port, 1)
        for name, value in (("auth-pass", PASSWORD), ("down-after-milliseconds", 500), ("failover-timeout", 5000)):
            ask("SENTINEL", "SET", NAME, name, value)
        until(lambda: ask("SENTINEL", "REPLICAS", NAME))

    def fail_over(self) -> bool:
        """Whether the sentinel has begun; it may not know the replica well enough yet."""
        try:
            return bool(self.sentinel.client.execute_command("SENTINEL", "FAILOVER", NAME))
        except ResponseError:
            return False

    def promoted(self) -> bool:
        return bool(self.replica.client.info("replication")["role"] == "master")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    servers = Watched(tmp_path)
    with running(servers.primary, servers.replica, servers.sentinel):
        servers.watch()
        yield servers


@pytest.fixture
def settings(watched: Watched) -> TasksSettings:
    return TasksSettings(redis_url=watched.url, lease_s=10.0)


class Work:
    """A job in hand, kept alive and followed, one that waits, and all that a failover may take from them."""

    def __init__(self, bus: Bus, held: Claimed, reader: Reader, waiting: str) -> None:
        self.bus = bus
        self.held = held
        self.reader = reader
        self.waiting = waiting
        self.lost: list[str] = []

    async def say(self, number: int, text: str) -> None:
        """As the publisher does: again, until it was written."""

        async def said() -> bool:
            try:
                verdicts = await self.bus.queue.append([Chunk(self.held.lease, number, tokens(text))])
            except BusUnavailable:
                return False
            return verdicts == [Verdict.OK]

        await eventually(said, FAILOVER_S)
        heard = await self.reader.next(FAILOVER_S)
        assert heard is not None
        assert (heard.number, heard.event) == (number, *tokens(text))
        assert isinstance(heard.event, Tokens)

    async def end(self) -> None:
        """Nothing was lost, and what waited is handed out and done."""
        queue = self.bus.queue
        ending = Finished(status="succeeded")
        assert await queue.finish(self.held.lease, ending, 3)
        assert [event.event async for event in self.reader] == [ending]
        [claimed] = await queue.claim("w1", "m", ANY)
        assert claimed.job.id == self.waiting
        assert await queue.finish(claimed.lease, ending, 1)
        assert not self.lost


async def work_through(watched: Watched, settings: TasksSettings, bus: Bus, fail_over: str) -> None:
    first, second = await queued(bus), await queued(bus)
    [held] = await bus.queue.claim("w1", "m", ANY._replace(interactive=1, bulk=1))
    assert held.job.id == first.id
    async with bus.log.follow(first.id) as reader:
        work = Work(bus, held, reader, second.id)
        keeper = LeaseKeeper(
            settings,
            "w1",
            is_alive=lambda: True,
            on_cancel=lambda _: None,
            on_lost=lambda lease: work.lost.append(lease.job_id),
        )
        with keeper:
            keeper.hold(held.lease)
            await work.say(1, "before")
            await asyncio.to_thread(until_replicated, watched.primary, watched.replica)
            if fail_over == "killed":
                watched.primary.kill()
            else:
                await asyncio.to_thread(until, watched.fail_over)
            await asyncio.to_thread(until, watched.promoted)
            if fail_over == "replaced":
                # The sentinel says it too, some seconds later, and meanwhile words would go where they are lost.
                watched.primary.client.replicaof("127.0.0.1", watched.replica.port)
            await work.say(2, "after")
            beats = f"{settings.namespace}:{{p0}}:beats"
            watched.replica.client.delete(beats)
            await asyncio.to_thread(until, lambda: watched.replica.client.hexists(beats, "w1"))
        await work.end()


@pytest.mark.parametrize("fail_over", ["killed", "replaced"])
async def test_a_failover_costs_no_job_no_word_and_no_lease(
    watched: Watched, settings: TasksSettings, fail_over: str
) -> None:
    async with open_bus(settings, name="test") as bus, Redis(connection_pool=task_pool(settings, name="arq")) as arq:
        await bus.check_server()
        await arq.set("arq", "before")
        await work_through(watched, settings, bus, fail_over)
        assert await eventually(lambda: _set(arq), FAILOVER_S)
        await arq.connection_pool.disconnect()
    assert watched.replica.client.get("arq") == b"after"


async def _set(arq: Redis) -> bool:
    """arq's own way out of an error is to begin again."""
    try:
        return bool(await arq.set("arq", "after"))
    except (RedisError, OSError):
        return False


async def test_discovery_leaves_no_connection_to_a_sentinel(watched: Watched, settings: TasksSettings) -> None:
    async with open_bus(settings, name="test") as bus, bus.log.follow("job_0_a", expects=True):
        await asyncio.gather(*(bus.ping() for _ in range(16)))
        others = [each for each in watched.sentinel.client.client_list() if each["cmd"] != "client|list"]
        assert not others


async def test_a_name_that_no_sentinel_knows_is_said(watched: Watched) -> None:
    settings = TasksSettings(redis_url=watched.url.replace(NAME, "another"))
    async with open_bus(settings, name="test") as bus:
        with pytest.raises(BusUnavailable, match="no sentinel knows a living primary 'another'"):
            await bus.ping()
