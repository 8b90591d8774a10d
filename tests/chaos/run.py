"""One chaos run from the first server to the last check."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from shared.bus import Bus, open_bus
from shared.bus.keys import Keys
from shared.settings import WorkerSettings
from tests.chaos import aftermath, checker, fence, orders
from tests.chaos.aftermath import Aftermath
from tests.chaos.checker import Violation
from tests.chaos.clients import MODEL, Clients
from tests.chaos.fleet import Fleet
from tests.chaos.history import History
from tests.chaos.nemesis import Nemesis
from tests.chaos.proxy import Proxy
from tests.chaos.server import Server

N_SLOTS = 3
GRACE_S = 0.15
START_TIMEOUT_S = 30.0
SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    server: str
    """`valkey` or `redis7`."""
    n_jobs: int
    duration_s: float
    """For which jobs are asked for and faults dealt out."""
    gap_s: float
    """Between two faults."""
    lease_s: float = 0.8
    n_workers: int = 3
    least_tokens: int = 0
    """Of every job; long ones keep all workers busy."""
    kinds: tuple[str, ...] = ()
    """Of faults; without any, all."""
    patience_s: float = 60.0
    """After the last fault: by then everybody must have got what they wanted."""
    is_fenced: bool = True

    @property
    def partitions(self) -> int:
        return random.Random(f"partitions {self.seed}").choice((1, 3))


@dataclass(frozen=True, slots=True)
class Outcome:
    plan: Plan
    history: History
    aftermath: Aftermath
    violations: list[Violation]
    n_cut: int
    n_leases_lost: int
    seconds: float

    @property
    def faults(self) -> Counter[str]:
        return Counter(fault.name for fault in self.history.faults)


async def play(plan: Plan, folder: Path) -> Outcome:
    """`folder` is where the data of the server and the logs of all processes go."""
    async with AsyncExitStack() as stack:
        return await _play(plan, folder, stack)


async def _play(plan: Plan, folder: Path, stack: AsyncExitStack) -> Outcome:
    settings = _settings(plan)
    keys = Keys(settings.namespace, settings.partitions)
    scripts = _unfenced(folder) if not plan.is_fenced else None
    history = History()
    server = await stack.enter_async_context(Server(plan.server, folder))
    fleet = await stack.enter_async_context(Fleet(server.port, settings, plan.n_workers, folder, scripts, history))
    way = await stack.enter_async_context(Proxy(server.port))
    bus = await stack.enter_async_context(
        open_bus(settings.model_copy(update={"redis_url": SecretStr(way.url)}), name="clients")
    )
    await _workers(bus, plan.n_workers)
    clients = Clients(bus, history, plan.seed)
    async with _beside(clients.keep_house()):
        await _act(plan, clients, Nemesis(server, fleet, way, history, plan.seed), history)
        await _settled(server, keys)
    await fleet.leave()
    with server.client() as client:
        left = aftermath.read(client, keys)
    return Outcome(
        plan=plan,
        history=history,
        aftermath=left,
        violations=checker.check(history, left),
        n_cut=way.n_cut + sum(place.proxy.n_cut for place in fleet.places),
        n_leases_lost=fleet.n_leases_lost,
        seconds=history.now_s(),
    )


def _settings(plan: Plan) -> WorkerSettings:
    return WorkerSettings(
        namespace=f"chaos{secrets.token_hex(4)}",
        partitions=plan.partitions,
        lease_s=plan.lease_s,
        model="scripted.gguf",
        alias=MODEL,
        parallel=N_SLOTS,
        grace_s=GRACE_S,
    )


async def _act(plan: Plan, clients: Clients, nemesis: Nemesis, history: History) -> None:
    """From the first order to the last client that has what it wanted, or has waited long enough."""
    drawn = orders.draw(plan.seed, plan.n_jobs, plan.duration_s, plan.least_tokens)
    history.start()
    asked = asyncio.create_task(clients.place(drawn))
    await nemesis.rage(plan.kinds or nemesis.kinds, plan.gap_s, plan.duration_s)
    try:
        await asyncio.wait_for(asked, plan.patience_s)
    except TimeoutError:
        history.complaints.append(f"{plan.patience_s:.0f} s after the last fault somebody still waits")


async def _workers(bus: Bus, n_workers: int) -> None:
    """Until all are there."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while len(await bus.presence.workers()) < n_workers:  # noqa: ASYNC110 - a server's state
            await asyncio.sleep(0.05)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """`work` beside the block, cancelled with its end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _unfenced(folder: Path) -> Path:
    scripts = folder / "unfenced"
    fence.write_unfenced(scripts)
    return scripts


async def _settled(server: Server, keys: Keys) -> None:
    """Jobs that nobody waits for end too, and what belongs to them is cleared away. What is not, the checker finds."""
    with suppress(TimeoutError), server.client() as client:
        async with asyncio.timeout(SETTLE_S):
            while not await asyncio.to_thread(aftermath.is_quiet, client, keys):  # noqa: ASYNC110 - a server's state
                await asyncio.sleep(0.05)
