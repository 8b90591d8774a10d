"""The embedded server keeps its data, its folder to itself, and nothing running."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
import redis

from shared.bus import Chunk, EmbeddedServer, open_bus
from shared.errors import BusUnavailable
from shared.events import Finished
from shared.settings import BusSettings, ConfigError
from tests.shared.bus.conftest import claimed, eventually, queued, tokens


def client_of(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_it_keeps_what_was_written_and_listens_on_no_port(tmp_path: Path) -> None:
    for start in range(2):
        with EmbeddedServer() as server:
            with client_of(server.start(tmp_path / "state")) as client:
                assert client.get("start") == (b"0" if start else None)
                client.set("start", start)
                config = client.config_get("*")
                assert (config["port"], config["appendonly"], config["appendfsync"]) == ("0", "yes", "everysec")
                assert config["maxmemory-policy"] == "noeviction"
            pid = server.pid
        assert pid and not is_running(pid)


def test_a_path_too_long_for_a_socket_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("long " * 30) / "é"
    with EmbeddedServer() as server, client_of(server.start(folder)) as client:
        assert client.ping()
    assert (folder / "appendonlydir").is_dir()


def test_two_servers_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.bus.embedded.LOCK_TIMEOUT_S", 0.1)
    with EmbeddedServer() as first, EmbeddedServer() as second:
        first.start(tmp_path)
        with pytest.raises(ConfigError, match="in use by another slotstream"):
            second.start(tmp_path)
    with EmbeddedServer() as third:
        third.start(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with EmbeddedServer() as server, pytest.raises(ConfigError, match=r"--state-dir: cannot write to .*file"):
        server.start(tmp_path / "file")


def test_broken_data_is_said_in_one_sentence(tmp_path: Path) -> None:
    with EmbeddedServer() as server, client_of(server.start(tmp_path)) as client:
        client.set("a", 1)
    [manifest] = tmp_path.glob("appendonlydir/*.manifest")
    manifest.write_text("nonsense\n")
    with EmbeddedServer() as server, pytest.raises(ConfigError, match="does not start") as refused:
        server.start(tmp_path)
    assert "\n" not in str(refused.value)


PARENT = """
import sys, time
from asyncio.subprocess import PIPE
from pathlib import Path
from shared.bus import EmbeddedServer
server = EmbeddedServer()
server.start(Path(sys.argv[1]))
print(server.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
async def test_it_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, tmp_path, stdout=PIPE)
    assert parent.stdout
    pid = int(await parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    await parent.wait()

    async def is_gone() -> bool:
        return not is_running(pid)

    await eventually(is_gone)
    with EmbeddedServer() as server:
        server.start(tmp_path)


def test_a_ctrl_c_on_the_terminal_is_not_for_it(tmp_path: Path) -> None:
    with EmbeddedServer() as server:
        server.start(tmp_path)
        assert server.pid
        assert os.getpgid(server.pid) != os.getpgid(0)


async def test_readers_and_writers_live_through_a_restart(tmp_path: Path) -> None:
    with EmbeddedServer() as first, EmbeddedServer() as second:
        settings = BusSettings(redis_url=first.start(tmp_path), namespace="t", lease_s=30)
        async with open_bus(settings, name="test") as bus:
            job = await queued(bus)
            lease = (await claimed(bus)).lease
            async with bus.log.follow(job.id) as reader:
                await bus.queue.append([Chunk(lease, 1, tokens("1"))])
                assert await reader.next(5) == (1, tokens("1")[0])
                first.stop()
                waiting = asyncio.create_task(reader.next())
                with pytest.raises(BusUnavailable):
                    await bus.queue.append([Chunk(lease, 2, tokens("2"))])
                second.start(tmp_path)
                await bus.queue.append([Chunk(lease, 2, tokens("2"))])
                assert await waiting == (2, tokens("2")[0])
                assert await bus.queue.finish(lease, Finished(status="succeeded"), 3)
                assert [number async for number, _ in reader] == [3]
