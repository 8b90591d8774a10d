"""A hold is kept while there is work, and let go as soon as there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress

import pytest

from api.tasks.batches.holding import AFTER_FAULT_S, LONGEST_WAIT_S, Holder, Rest
from shared.bus import Bus, Hold
from shared.errors import StoreUnavailable
from tests.api.scripted_worker import ScriptedWorker
from tests.api.tasks.batches.conftest import Bench

LEASE_S = 0.3


async def is_due(bench: Bench, batch_id: str) -> bool:
    return batch_id in [due.batch_id for due in await bench.bus.batches.due()]


async def worked(bus: Bus, hold: Hold, work: Coroutine[None, None, Rest]) -> None:
    async with Holder(bus) as holder:
        await holder.work(hold, work)


async def test_a_hold_outlives_its_lease_as_long_as_there_is_work(idle_bench: Bench) -> None:
    hold = await idle_bench.held(batch_id := await idle_bench.made(b""), LEASE_S)

    async def work() -> Rest:
        await asyncio.sleep(2 * LEASE_S)
        assert not await is_due(idle_bench, batch_id)
        return Rest(60)

    await worked(idle_bench.bus, hold, work())
    assert not await is_due(idle_bench, batch_id)
    assert not await idle_bench.bus.batches.renew(hold)


async def test_work_ends_when_somebody_else_has_the_batch(idle_bench: Bench) -> None:
    hold = await idle_bench.held(batch_id := await idle_bench.made(b""), LEASE_S)
    await idle_bench.bus.batches.rest(hold, 0)
    other = await idle_bench.held(batch_id)
    ended = asyncio.Event()

    async def work() -> Rest:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return Rest(0)

    async with asyncio.timeout(10):
        await worked(idle_bench.bus, hold, work())
    assert ended.is_set()
    assert await idle_bench.bus.batches.renew(other), "the other's hold is left alone"


async def test_who_is_told_to_leave_lets_go_at_once(idle_bench: Bench) -> None:
    """And while it does it is told again and again, as arq's worker is."""
    hold = await idle_bench.held(batch_id := await idle_bench.made(b""), 60)
    begun = asyncio.Event()

    async def work() -> Rest:
        begun.set()
        await asyncio.sleep(60)
        return Rest(60)

    async with Holder(idle_bench.bus) as holder:
        working = asyncio.create_task(holder.work(hold, work()))
        await begun.wait()
        while not working.done():
            working.cancel()
            await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            await working
    assert await is_due(idle_bench, batch_id)


@pytest.mark.parametrize(
    ("error", "after_s"),
    [
        (ZeroDivisionError(), AFTER_FAULT_S),
        (StoreUnavailable("away", retry_after_s=7), 7),
        (StoreUnavailable("full", retry_after_s=60), LONGEST_WAIT_S),
    ],
)
async def test_a_batch_rests_for_a_while_after_a_fault(idle_bench: Bench, error: Exception, after_s: float) -> None:
    hold = await idle_bench.held(batch_id := await idle_bench.made(b""), 60)

    async def work() -> Rest:
        raise error

    await worked(idle_bench.bus, hold, work())
    name = f"{idle_bench.settings.namespace}:{{p0}}:attention"
    [score] = await idle_bench.bus._link.send([("ZSCORE", name, batch_id)])
    assert after_s - 1 < float(score) / 1000 - hold.now < after_s + 10


async def test_a_resting_batch_is_looked_at_when_enough_of_its_lines_have_ended(
    bench: Bench, worker: ScriptedWorker
) -> None:
    batch_id = await bench.made([{"custom_id": "a", "url": "/completion", "body": {"prompt": "hold a|b"}}])
    hold = await bench.held(batch_id)
    rest = await bench.work.step(hold)
    assert (rest.after_s, rest.n_ended) == (1.0, 1)
    await bench.bus.batches.rest(hold, 60, n_ended=rest.n_ended)
    assert not await is_due(bench, batch_id)
    worker.go.set()
    await bench.held(batch_id)
