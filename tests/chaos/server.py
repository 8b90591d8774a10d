"""A real server on a loopback port, that can be killed and started again on what it had written.

Knows nothing of the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Self

from redis import Redis, RedisError

from shared.bus.embedded import server_binary
from tests.ports import free_port

START_TIMEOUT_S = 20.0
REDIS7 = shutil.which("redis-server")


def binary_of(kind: str) -> str:
    """The program of a `valkey` or a `redis7`. Raises LookupError when this machine has none."""
    if kind == "valkey":
        return str(server_binary())
    if REDIS7 is None:
        raise LookupError("no redis-server on this machine")
    return REDIS7


class Server:
    def __init__(self, kind: str, folder: Path) -> None:
        self.port = free_port()
        self._arguments = [
            binary_of(kind),
            *("--port", str(self.port)),
            *("--bind", "127.0.0.1"),
            *("--dir", str(folder)),
            *("--logfile", str(folder / "server.log")),
            *("--save", ""),
            *("--appendonly", "yes"),
            *("--appendfsync", "always"),
            *("--maxmemory-policy", "noeviction"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end(signal.SIGKILL)

    async def start(self) -> None:
        """Returns when it answers."""
        self._process = subprocess.Popen(self._arguments, stdin=subprocess.DEVNULL)  # noqa: ASYNC220 - it is a fork
        async with asyncio.timeout(START_TIMEOUT_S):
            while not await asyncio.to_thread(self._answers):
                assert self._process.poll() is None, "the server does not start"
                await asyncio.sleep(0.02)

    async def end(self, number: signal.Signals) -> None:
        if self._process:
            self._process.send_signal(number)
            await asyncio.to_thread(self._process.wait)
            self._process = None

    def freeze(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process:
            self._process.send_signal(signal.SIGCONT)

    async def forget_scripts(self) -> None:
        with contextlib.suppress(RedisError, OSError):  # another fault may have it just now
            await asyncio.to_thread(self._ask, "SCRIPT", "FLUSH")

    def client(self) -> Redis:
        """Straight to the server, past all proxies."""
        return Redis(port=self.port, socket_timeout=START_TIMEOUT_S)

    def _answers(self) -> bool:
        with contextlib.suppress(RedisError, OSError):
            return bool(self._ask("PING"))
        return False

    def _ask(self, *command: str) -> object:
        with self.client() as client:
            return client.execute_command(*command)
