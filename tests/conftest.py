"""Real servers for all tests, a namespace of its own for each, and a check that none leaves keys behind."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import structlog

from shared.bus import EmbeddedServer
from shared.settings import BusSettings

pytest_plugins = ["tests.s3", "tests.served"]

# As in a role that runs: standard output is for what a command has to say.
structlog.configure(logger_factory=structlog.stdlib.LoggerFactory())

# A shell starts what runs in the background deaf to Ctrl-C, and all that we start would be deaf too.
signal.signal(signal.SIGINT, signal.default_int_handler)

REDIS_SERVER = shutil.which("redis-server")

BOUNDED_OTHERWISE = (
    *("q:", "turn:", "load:", "due", "lanes", "dead", "outbox", "partitions", "identity"),
    *("endpoint:", "endpoints:"),
)
"""Keys, after their prefix, that may stay without an expiry: lanes and what belongs to them, lists with a cap, and what
a tenant made by name and may only have some of."""


LONG_FIRST = ("end_to_end", "faults", "clients", "chaos")


MOST_AT_ONCE = 4


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are CPUs: many tests wait, for processes to start and for leases to run out."""
    return min(len(os.sched_getaffinity(0)) + 1, MOST_AT_ONCE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first, so that no process is left with one of them when the others are done."""
    items.sort(key=lambda item: not any(folder in item.path.parts for folder in LONG_FIRST))


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of the user, for all that keeps its files there: not that of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The embedded server, as `slotstream serve` starts it."""
    with EmbeddedServer() as server:
        yield server.start(tmp_path_factory.mktemp("valkey"))


@pytest.fixture(scope="session")
def redis7_url() -> Iterator[str]:
    """The distribution's redis-server, where there is one."""
    if REDIS_SERVER is None:
        pytest.skip("no redis-server on this machine")
    folder = Path(tempfile.mkdtemp(prefix="slotstream-test-"))
    socket = folder / "redis.sock"
    server = subprocess.Popen(
        [REDIS_SERVER, "--port", "0", "--unixsocket", socket, "--dir", folder, "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
    )
    try:
        with redis.Redis(unix_socket_path=str(socket), socket_timeout=5.0) as client:
            _until_it_answers(client, server)
        yield f"unix://{socket}"
    finally:
        server.terminate()
        server.wait(10)
        shutil.rmtree(folder)


def _until_it_answers(client: redis.Redis, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            client.ping()
        except (redis.ConnectionError, OSError):
            continue
        return
    raise RuntimeError("redis-server ended at once")


@pytest.fixture(params=["valkey", pytest.param("redis7", marks=pytest.mark.slow)])
def server_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def bus_settings(server_url: str) -> Iterator[BusSettings]:
    """Settings for both servers in turn, with nothing in their namespace."""
    yield from _settings(server_url)


@pytest.fixture
def embedded_settings(valkey_url: str) -> Iterator[BusSettings]:
    """The same for the embedded server alone: for tests whose subject is not the bus."""
    yield from _settings(valkey_url)


def _settings(url: str) -> Iterator[BusSettings]:
    settings = BusSettings(redis_url=url, namespace=f"t{secrets.token_hex(6)}", lease_s=5.0)
    yield settings
    with redis.Redis.from_url(url) as client:
        keys = list(client.scan_iter(match=f"{settings.namespace}:*", count=1000))
        leaked = [key.decode() for key in keys_that_stay(client, keys)]
        if keys:
            client.delete(*keys)
    if leaked:
        pytest.fail(f"keys that would stay for ever: {leaked}")


def keys_that_stay(client: redis.Redis, keys: list[bytes]) -> list[bytes]:
    """Those that have no expiry and no other bound."""
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.pttl(key)
        lives_ms = pipeline.execute()
    return [key for key, ms in zip(keys, lives_ms, strict=True) if ms == -1 and not is_bounded(key.decode())]


def is_bounded(key: str) -> bool:
    name = key.split(":", 1)[1]
    if name.startswith("{"):
        name = name.split(":", 1)[1]
    return name.startswith(BOUNDED_OTHERWISE)
