"""Real processes of all roles on loopback: an embedded server, an API, and workers as a test asks for them."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from shared.bus import EmbeddedServer
from shared.settings import BusSettings
from tests.models import tiny_model

PATIENCE_S = 40.0


class Role:
    """One process. Its log is shown when a test fails, since pytest shows what is printed."""

    def __init__(self, module: str, environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def wait(self) -> int:
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        print(f"--- {self._log.name}\n{self.log}")


class Stack:
    """The roles around one namespace of one server."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self._folder = folder
        self.environment = {
            "SLOTSTREAM_REDIS_URL": redis_url,
            "SLOTSTREAM_NAMESPACE": f"t{secrets.token_hex(6)}",
            "SLOTSTREAM_LEASE_S": "2",
            "SLOTSTREAM_GRACE_S": "0.2",
            "SLOTSTREAM_LOG_LEVEL": "debug",
        }
        self.roles: list[Role] = []
        self.http = httpx.AsyncClient(timeout=PATIENCE_S)

    @property
    def bus_settings(self) -> BusSettings:
        return BusSettings(
            redis_url=SecretStr(self.environment["SLOTSTREAM_REDIS_URL"]),
            namespace=self.environment["SLOTSTREAM_NAMESPACE"],
        )

    def start(self, module: str, **settings: Any) -> Role:
        variables = {f"SLOTSTREAM_{name.upper()}": str(value) for name, value in settings.items()}
        log = self._folder / f"{len(self.roles)}-{module}.log"
        role = Role(module, {**self.environment, **variables}, log)
        self.roles.append(role)
        return role

    async def start_api(self, port: int | None = None, **settings: Any) -> Role:
        port = port or free_port()
        role = self.start("api", port=port, **settings)
        self.http.base_url = httpx.URL(f"http://127.0.0.1:{port}")
        await self.until(self._answers, role)
        return role

    async def start_worker(self, model: Path, **settings: Any) -> Role:
        """A worker that is ready, on one thread unless told otherwise."""
        n_before = len(await self.workers())
        role = self.start("worker", model=model, **{"alias": "tiny", "threads": 1, **settings})

        async def is_there() -> bool:
            return len(await self.workers()) > n_before

        await self.until(is_there, role)
        return role

    async def close(self) -> None:
        await self.http.aclose()
        for role in self.roles:
            role.end()

    async def workers(self) -> set[str]:
        """Ids of the workers that are ready."""
        slots = (await self.http.get("/slots")).json()
        return {slot["worker"] for slot in slots} if isinstance(slots, list) else set()

    async def busy_slots(self) -> int:
        return sum(slot["is_processing"] for slot in (await self.http.get("/slots")).json())

    async def until(self, condition: Callable[[], Any], role: Role | None = None) -> None:
        """Wait for `condition`, as long as `role` lives."""
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():
                assert role is None or role.process.poll() is None, "the process ended"
                await asyncio.sleep(0.05)

    async def _answers(self) -> bool:
        try:
            return (await self.http.get("/live")).status_code == 200
        except httpx.TransportError:
            return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedServer() as server:
        yield server.start(tmp_path_factory.mktemp("valkey"))


@pytest.fixture
async def bare_stack(redis_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    """A namespace in which nothing runs yet."""
    stack = Stack(redis_url, tmp_path)
    try:
        yield stack
    finally:
        await stack.close()


@pytest.fixture
async def stack(bare_stack: Stack) -> Stack:
    """An API, and no worker yet."""
    await bare_stack.start_api()
    return bare_stack


@pytest.fixture(scope="session")
def model() -> Path:
    """A tiny random model: its words mean nothing, and it is quick."""
    return tiny_model()
