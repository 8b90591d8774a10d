"""One link carries everybody's commands, and tells a server that is away from one that says no."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from shared.bus import Bus, EmbeddedServer, open_bus
from shared.bus.address import server_of
from shared.bus.connect import Link, connection_factory, is_refusal
from shared.bus.script import ask, script
from shared.bus.subscriber import Subscriber
from shared.errors import BusUnavailable
from shared.settings import BusSettings, ConfigError
from tests.shared.bus.conftest import Behind


async def test_commands_of_many_tasks_get_their_own_replies(bus_settings: BusSettings) -> None:
    async with Link(connection_factory(server_of(bus_settings), "test")) as link:
        replies = await asyncio.gather(*(link.send([("ECHO", i), ("ECHO", -i)]) for i in range(2000)))
    assert replies == [[str(i).encode(), str(-i).encode()] for i in range(2000)]


async def test_what_the_server_refuses_fails_alone(bus_settings: BusSettings) -> None:
    async with Link(connection_factory(server_of(bus_settings), "test")) as link:
        good, bad = await asyncio.gather(link.send([("PING",)]), link.send([("NONSENSE",), ("PING",)]))
    assert good == [b"PONG"]
    assert isinstance(bad[0], ResponseError)
    assert bad[1] == b"PONG"


async def test_what_cannot_be_said_is_its_senders_fault_alone(bus_settings: BusSettings) -> None:
    async with Link(connection_factory(server_of(bus_settings), "test")) as link:
        replies = await asyncio.gather(link.send([("ECHO", "\ud800")]), link.send([("PING",)]), return_exceptions=True)
    assert isinstance(replies[0], UnicodeEncodeError)
    assert replies[1] == [b"PONG"]


async def test_a_sender_that_gives_up_takes_no_reply_of_others(bus_settings: BusSettings) -> None:
    async with Link(connection_factory(server_of(bus_settings), "test")) as link:
        for i in range(50):
            impatient = asyncio.create_task(link.send([("ECHO", "mine")]))
            for _ in range(i % 7):
                await asyncio.sleep(0)
            impatient.cancel()
            assert await link.send([("ECHO", i)]) == [str(i).encode()]


async def test_connections_that_the_server_closed_are_opened_anew(bus: Bus, behind: Behind) -> None:
    for _ in range(5):
        await bus.ping()
        await behind.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(0)
        await bus.ping()


def test_a_connection_that_breaks_under_uvloop_is_opened_anew(bus_settings: BusSettings) -> None:
    connect = connection_factory(server_of(bus_settings), "test")
    made: list[Any] = []

    def remember() -> AbstractConnection:
        made.append(connect())
        return made[-1]

    async def break_and_write() -> None:
        async with Link(remember) as link, Subscriber(remember) as subscriber:
            for round_ in range(3):
                async with subscriber.listen([f"before {round_}"], 8):
                    await link.send([("PING",)])
                    for connection in made:
                        if connection.is_connected:
                            connection._writer.transport.abort()  # as a reset does
                    await asyncio.sleep(0)  # now it is closed, and its reader will hear so in a moment
                    async with subscriber.listen([f"after {round_}"], 8):
                        assert await link.send([("PING",)]) == [b"PONG"]

    uvloop.run(break_and_write())


async def test_the_process_is_named_in_the_servers_list(bus_settings: BusSettings, behind: Behind) -> None:
    async with open_bus(bus_settings, name="api on host") as bus:
        await bus.ping()
        assert "api-on-host" in {client["name"] for client in await behind.client.client_list()}


async def test_a_closed_bus_leaves_no_connection(bus_settings: BusSettings, behind: Behind) -> None:
    async with open_bus(bus_settings, name="leaver") as bus, bus.log.follow("job_0_a", expects=True):
        await bus.ping()

    async def names() -> set[str]:
        return {client["name"] for client in await behind.client.client_list()}

    async with asyncio.timeout(5):
        while "leaver" in await names():
            pass


@pytest.mark.parametrize("url", ["unix:///nowhere/at/all.sock", "redis://127.0.0.1:1/0"])
async def test_a_server_that_is_not_there_is_unavailable(url: str) -> None:
    async with open_bus(BusSettings(redis_url=url), name="test") as bus:
        for call in (bus.ping(), bus.queue.record("job_0_a"), bus.check_server()):
            with pytest.raises(BusUnavailable):
                await call


async def test_a_url_that_is_none_of_ours_is_named() -> None:
    with pytest.raises(ConfigError, match="--redis-url"):
        async with open_bus(BusSettings(redis_url="http://localhost"), name="test"):
            pass


async def test_a_server_that_evicts_is_refused(bus: Bus, behind: Behind) -> None:
    await bus.check_server()
    for policy in ("allkeys-lru", "volatile-ttl"):
        await behind.client.config_set("maxmemory-policy", policy)
        try:
            with pytest.raises(ConfigError, match="maxmemory-policy"):
                await bus.check_server()
        finally:
            await behind.client.config_set("maxmemory-policy", "noeviction")


async def test_a_server_that_only_reads_is_unavailable_for_now(bus: Bus, behind: Behind) -> None:
    await behind.client.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(BusUnavailable):
            await bus.queue.reap()
    finally:
        await behind.client.replicaof("NO", "ONE")
    await bus.queue.reap()


@pytest.mark.parametrize("words", ["READONLY", "NOREPLICAS"])
async def test_the_connection_to_a_demoted_primary_is_left(
    bus_settings: BusSettings, behind: Behind, words: str
) -> None:
    """A name that leads to the new primary moves no connection that is open."""
    async with Link(connection_factory(server_of(bus_settings), "test")) as link:

        async def connections() -> set[int]:
            return {(await link.send([("CLIENT", "ID")]))[0] for _ in range(2 * Link.CONNECTIONS)}

        before = await connections()
        if words == "READONLY":
            await behind.client.replicaof("127.0.0.1", "1")
        else:
            await behind.client.config_set("min-replicas-to-write", 1)
        try:
            for _ in range(2 * Link.CONNECTIONS):
                [refusal] = await link.send([("SET", "a", "b")])
                assert is_refusal(refusal)
        finally:
            await behind.client.replicaof("NO", "ONE")
            await behind.client.config_set("min-replicas-to-write", 0)
        assert before.isdisjoint(await connections())


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
async def test_a_role_waits_for_a_server_and_then_looks_at_it(tmp_path: Path, policy: str) -> None:
    with EmbeddedServer() as server:
        url = server.start(tmp_path)
        server.stop()
        async with open_bus(BusSettings(redis_url=url), name="test") as bus:
            with capture_logs() as lines:
                reaching = asyncio.create_task(bus.reach())
                await asyncio.wait((reaching,), timeout=1.0)
            assert not reaching.done()
            assert ["advice" in line for line in lines] == [True] + [False] * (len(lines) - 1), "what to do, once"
            server.start(tmp_path)
            async with Redis.from_url(url) as client:
                await client.config_set("maxmemory-policy", policy)
            await asyncio.wait((reaching,), timeout=10)
            assert isinstance(reaching.exception(), ConfigError) is (policy != "noeviction")


async def test_all_must_agree_on_the_partitions(bus_settings: BusSettings) -> None:
    async with open_bus(bus_settings.model_copy(update={"partitions": 3}), name="first") as first:
        await first.check_server()
        async with open_bus(bus_settings, name="other") as other:
            with pytest.raises(ConfigError, match=r"--partitions: is 1, but this queue was made with 3"):
                await other.check_server()
        await first.check_server()


async def test_whether_a_job_would_be_taken_is_known_without_one(bus: Bus, behind: Behind) -> None:
    await bus.queue.check_accepts()
    await behind.client.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(BusUnavailable):
            await bus.queue.check_accepts()
    finally:
        await behind.client.config_set("maxmemory", "0")
    await bus.queue.check_accepts()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", True),
        ("MISCONF Errors writing to the AOF file: No space left on device", True),
        ("BUSY Redis is busy running a script.", True),
        ("TRYAGAIN Multiple keys request during rehashing of slot", True),
        ("ERR Script attempted to access a non local key in a cluster node", True),
        ("ERR unknown command", False),
        ("BUSYGROUP Consumer Group name already exists", False),
        ("", False),
    ],
)
def test_which_refusals_pass_by_themselves(words: str, expected: bool) -> None:
    assert is_refusal(ResponseError(words)) is expected


FOLDER = Path(__file__).parents[3] / "shared/bus/scripts"
SCRIPTS = sorted(
    path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.lua") if path.parent.name != "lib"
)


BEGINNINGS = (
    *("enqueue", "accept", "batches/create", "batches/refuse", "files/create"),
    *("endpoints/create", "endpoints/rotate", "endpoints/update", "deliveries/replay"),
)
"""Refused when memory is full, so that what has begun can end."""


@pytest.mark.parametrize("name", SCRIPTS)
async def test_every_script_states_its_invariant_and_only_what_a_client_begins_needs_memory(
    bus_settings: BusSettings, name: str
) -> None:
    lines = script(name).text.split("\n")
    assert (lines[0] == "#!lua") is (name in BEGINNINGS)
    assert lines[0] in ("#!lua", "#!lua flags=allow-oom", "#!lua flags=no-writes")
    assert any(line.startswith(f"-- {name.rpartition('/')[2]}: ") for line in lines)
    assert any(line.startswith("-- Invariant: ") for line in lines)
    async with Link(connection_factory(server_of(bus_settings), "test")) as link:
        assert await ask(link, [script(name).load]) == [script(name).sha.encode()]
