"""An API, a tasks process and a worker without a model around an embedded server, and what each of them spends.

Linux only: what processes have and had of memory and CPU stands in /proc.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import redis

from api.cli.stack import free_port
from shared.bus import EmbeddedServer

MODULES = {"api": "api", "tasks": "api.tasks", "worker": "bench.noop"}
CHILDREN, SERVER = "planning", "server"
"""Under which names stand what the tasks process starts, and what the server says of its own memory."""
LOOK_EVERY_S = 0.02
MB = 1_000_000
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")


class Spent(NamedTuple):
    cpu_s: Mapping[str, float]
    memory_mb: Mapping[str, tuple[float, float]]
    """By name: when it began, and at the most since."""

    def since(self, before: Spent) -> Spent:
        cpu_s = {name: seconds - before.cpu_s[name] for name, seconds in self.cpu_s.items()}
        return Spent(cpu_s, {name: (before.memory_mb[name][0], most) for name, (_, most) in self.memory_mb.items()})


class Crew:
    def __init__(self, url: str, processes: Mapping[str, subprocess.Popen[bytes]], server: EmbeddedServer) -> None:
        self.url = url
        """Of the API."""
        self._pids = {name: process.pid for name, process in processes.items()}
        self._server_pid = server.pid or 0
        self._redis = redis.Redis.from_url(server.url or "")
        self._most: dict[str, float] = {}
        self._stopped = threading.Event()
        self._watch = threading.Thread(target=self._keep_looking, name="memory", daemon=True)

    @classmethod
    @asynccontextmanager
    async def start(cls, folder: Path) -> AsyncIterator[Crew]:
        """Everything, ready to work; nothing is left running. Raises CalledProcessError when one does not start."""
        port = free_port("127.0.0.1")
        with EmbeddedServer() as server:
            environment = {
                **os.environ,
                "SLOTSTREAM_REDIS_URL": server.start(folder / "valkey"),
                "SLOTSTREAM_STORE_URL": str(folder / "files"),
                "SLOTSTREAM_PORT": str(port),
                "SLOTSTREAM_LOG_LEVEL": "warning",
            }
            processes: dict[str, subprocess.Popen[bytes]] = {}
            try:
                for name, module in MODULES.items():
                    processes[name] = _process(module, environment, folder / f"{name}.log")
                crew = cls(f"http://127.0.0.1:{port}", processes, server)
                await crew._become_ready(processes)
                with crew._looking():
                    yield crew
            finally:
                for process in processes.values():
                    process.terminate()
                for process in processes.values():
                    process.wait(60)

    def look(self) -> Spent:
        """What was spent since the start."""
        self._see()
        cpu_s = {name: _cpu_s(pid) for name, pid in (*self._pids.items(), (SERVER, self._server_pid))}
        return Spent(cpu_s, {name: (mb, self._most[name]) for name, mb in self._memory_mb().items()})

    @contextmanager
    def _looking(self) -> Iterator[None]:
        self._watch.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._watch.join()
            self._redis.close()

    def _keep_looking(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            self._see()

    def _see(self) -> None:
        for name, mb in self._memory_mb().items():
            self._most[name] = max(mb, self._most.get(name, 0.0))

    def _memory_mb(self) -> dict[str, float]:
        found = {name: _resident_mb(pid) for name, pid in self._pids.items()}
        found[CHILDREN] = sum(map(_resident_mb, _children(self._pids["tasks"])))
        found[SERVER] = self._redis.info("memory")["used_memory"] / MB
        return found

    async def _become_ready(self, processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
        async with aiohttp.ClientSession(self.url) as http:
            while True:
                for process in processes.values():
                    if process.poll() is not None:
                        raise subprocess.CalledProcessError(process.returncode, process.args)
                try:
                    async with http.get("/health") as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)


def _process(module: str, environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as said:
        return subprocess.Popen([sys.executable, "-m", module], env=environment, stdout=said, stderr=said)


def _cpu_s(pid: int) -> float:
    """Of a process and of those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) * _TICK_S


def _resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / MB
    except (OSError, IndexError):
        return 0.0  # it ended while we looked


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    try:
        return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        return []
