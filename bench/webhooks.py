"""Deliveries of webhooks to a receiver on this machine: how many a second, and how soon after the end of a job.

The whole way is measured: `slotstream tasks` as a process of its own, the embedded server with its append-only file,
each delivery signed, sent, noted and its endpoint looked at again. The receiver answers at once, in this process. In
the last row others hang beside it, each with deliveries waiting: they must not cost the good ones anything.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from pydantic import SecretStr

from api.webhooks.events import Event
from api.webhooks.signing import new_secret
from bench.machine import usage
from bench.table import Column, table
from shared.bus import Bus, EmbeddedServer, open_bus
from shared.ids import Kind, new_id
from shared.jobs import Completion, Job
from shared.settings import BusSettings
from shared.webhooks import EVENT_TYPES, Endpoint, Secret

PATIENCE_S = 120.0
POSTED_AT_ONCE = 200
OF_A_HANGING_ONE = 20
"""Deliveries that wait for each receiver that hangs."""
BETWEEN_ENDS_S = 0.15
TASKS = "-m api.tasks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deliveries", type=int, default=4000, metavar="N", help="in each row (default: 4000)")
    parser.add_argument("--endpoints", type=int, default=8, metavar="N", help="of the later rows (default: 8)")
    parser.add_argument("--hanging", type=int, default=50, metavar="N", help="receivers that hang (default: 50)")
    parser.add_argument("--ends", type=int, default=40, metavar="N", help="jobs that end one by one (default: 40)")


class Load(NamedTuple):
    name: str
    n_endpoints: int
    n_hanging: int


class Rate(NamedTuple):
    name: str
    per_s: float
    tasks_us: float
    """CPU time of the tasks process for a delivery."""
    server_us: float


def measure(given: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(prefix="slotstream-bench-") as folder, EmbeddedServer() as server:
        url = server.start(Path(folder))
        return asyncio.run(_measure(url, given, Path(folder) / "tasks.log"))


async def _measure(url: str, given: argparse.Namespace, log: Path) -> str:
    several = f"{given.endpoints} endpoints"
    loads = [
        Load("one endpoint", 1, 0),
        Load(several, given.endpoints, 0),
        Load(f"{several}, beside {given.hanging} that hang", given.endpoints, given.hanging),
    ]
    rates = []
    for load in loads:
        async with _system(url, log) as (bus, receiver, start):
            await _post_all(bus, receiver, load, given.deliveries)
            start()
            rates.append(await _rate(receiver, load.name, given.deliveries))
    async with _system(url, log) as (bus, receiver, start):
        delays = await _delays(bus, receiver, start, given.ends)
    return report(rates, delays)


class Receiver(asyncio.Protocol):
    """Answers each request with 204, as quickly as Python can, but for those of a path that hangs."""

    def __init__(self, told: Receipts) -> None:
        self._told = told
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._pending += data
        while (end := self._pending.find(b"\r\n\r\n")) >= 0:
            head = self._pending[:end].lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            if len(self._pending) < end + 4 + length:
                return
            self._pending = self._pending[end + 4 + length :]
            if head.startswith(b"post /hang"):
                continue
            self._told.note(head.partition(b"webhook-id:")[2].split(b"\r\n", 1)[0].strip())
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")


class Receipts:
    """What the receiver has had, by id."""

    def __init__(self) -> None:
        self.at: dict[bytes, float] = {}
        self.port = 0
        self._came = asyncio.Event()

    def note(self, delivery_id: bytes) -> None:
        self.at.setdefault(delivery_id, time.perf_counter())
        self._came.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.at) < count:
                self._came.clear()
                await self._came.wait()


Start = Callable[[], None]


@asynccontextmanager
async def _system(url: str, log: Path) -> AsyncIterator[tuple[Bus, Receipts, Start]]:
    """A bus with nothing in it, a receiver, and what starts the tasks role."""
    settings = BusSettings(redis_url=SecretStr(url), namespace=f"b{secrets.token_hex(4)}")
    environment = {
        **os.environ,
        "SLOTSTREAM_REDIS_URL": url,
        "SLOTSTREAM_NAMESPACE": settings.namespace,
        "SLOTSTREAM_ALLOW_HOSTS": "127.0.0.1",
        "SLOTSTREAM_STORE_URL": str(log.parent / "files"),
        "SLOTSTREAM_LOG_LEVEL": "warning",
    }
    receipts, started = Receipts(), []
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = await asyncio.get_running_loop().create_server(lambda: Receiver(receipts), sock=listener)
    receipts.port = listener.getsockname()[1]

    def start() -> None:
        with log.open("ab") as output:
            started.append(subprocess.Popen([sys.executable, "-m", "api.tasks"], env=environment, stderr=output))

    try:
        async with open_bus(settings, name="bench") as bus:
            yield bus, receipts, start
    finally:
        for process in started:
            process.kill()
            process.wait()
        server.close()


async def _post_all(bus: Bus, receipts: Receipts, load: Load, n_deliveries: int) -> None:
    url = f"http://127.0.0.1:{receipts.port}"
    for number in range(load.n_hanging):
        await _post(bus, [await _endpoint(bus, f"{url}/hang", f"tenant {number}")], OF_A_HANGING_ONE)
    await _post(bus, [await _endpoint(bus, f"{url}/hook") for _ in range(load.n_endpoints)], n_deliveries)


async def _rate(receipts: Receipts, name: str, n_deliveries: int) -> Rate:
    """Of what waits, from the first delivery to the last."""
    await receipts.until(1)
    before = usage()
    n_before, started = len(receipts.at), time.perf_counter()
    await receipts.until(n_deliveries)
    n_after, seconds, spent = n_deliveries - n_before, time.perf_counter() - started, usage().since(before)
    tasks_s = sum(cpu_s for command, cpu_s in spent.by_command.items() if command.endswith(TASKS))
    server_s = sum(cpu_s for command, cpu_s in spent.by_command.items() if "valkey" in command)
    return Rate(name, n_after / seconds, tasks_s / n_after * 1e6, server_s / n_after * 1e6)


async def _delays(bus: Bus, receipts: Receipts, start: Start, n_ends: int) -> list[float]:
    """Milliseconds from the end of a job to the request at the receiver, one job after the other."""
    await _endpoint(bus, f"http://127.0.0.1:{receipts.port}/hook")
    start()
    delays = []
    for number in range(n_ends + 1):
        job = Job(id=bus.queue.new_job_id(), model="m", request=Completion(prompts=("x",)), is_durable=True)
        await bus.queue.enqueue(job)
        ended = time.perf_counter()
        await bus.queue.cancel(job.id)
        await receipts.until(number + 1)
        delays.append((time.perf_counter() - ended) * 1000)
        await asyncio.sleep(BETWEEN_ENDS_S * (1 + number % 7 / 7))  # not in step with anybody's looks
    return delays[1:]  # the first one waited for the process to start


async def _endpoint(bus: Bus, url: str, tenant: str = "default") -> Endpoint:
    made = Endpoint(
        id=bus.webhooks.new_id(tenant),
        tenant=tenant,
        url=url,
        event_types=EVENT_TYPES,
        secrets=(Secret(value=new_secret()),),
    )
    return await bus.webhooks.create(made)


async def _post(bus: Bus, endpoints: list[Endpoint], count: int) -> None:
    """So many deliveries, to each endpoint in turn."""
    deliveries = [
        Event(new_id(Kind.EVENT, 0), "job.succeeded", bus.queue.new_job_id(), time.time()).to(
            endpoints[number % len(endpoints)].id
        )
        for number in range(count)
    ]
    for at in range(0, count, POSTED_AT_ONCE):
        await bus.webhooks.post(deliveries[at : at + POSTED_AT_ONCE])


def report(rates: list[Rate], delays: list[float]) -> str:
    columns = [
        Column("deliveries to", is_text=True),
        Column("deliveries/s"),
        Column("µs of tasks"),
        Column("µs of the server"),
    ]
    rows = [(rate.name, f"{rate.per_s:,.0f}", f"{rate.tasks_us:,.0f}", f"{rate.server_us:,.0f}") for rate in rates]
    late = quantiles(delays, n=20)[-1]
    return (
        table(columns, rows)
        + f"\n  from the end of a job to the request at its receiver: p50 {median(delays):.0f} ms, p95 {late:.0f} ms"
    )
