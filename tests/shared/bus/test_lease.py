"""Leases live as long as their worker makes progress, and not longer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from shared.bus import Bus, Claimed, EmbeddedServer, Lease, LeaseKeeper, open_bus
from shared.events import Finished
from shared.jobs import JobStatus
from shared.settings import BusSettings
from tests.shared.bus.conftest import ANY, Behind, claimed, eventually, queued

LEASE_S = 0.4


@pytest.fixture
def bus_settings(bus_settings: BusSettings) -> BusSettings:
    return bus_settings.model_copy(update={"lease_s": LEASE_S})


class Told:
    """What the keeper said, job ids by kind, and a switch for whether the engine is alive."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.lost: list[str] = []
        self.news = threading.Event()
        self.is_engine_alive = True

    def on_cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)
        self.news.set()

    def on_lost(self, lease: Lease) -> None:
        self.lost.append(lease.job_id)
        self.news.set()

    async def wait(self, within_s: float = 5.0) -> None:
        async def look() -> bool:
            return self.news.is_set()

        await eventually(look, within_s)
        self.news.clear()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def keeper(bus_settings: BusSettings, told: Told) -> Iterator[LeaseKeeper]:
    with keeper_of(bus_settings, told) as opened:
        yield opened


def keeper_of(settings: BusSettings, told: Told, worker_id: str = "w1") -> LeaseKeeper:
    return LeaseKeeper(
        settings,
        worker_id,
        is_alive=lambda: told.is_engine_alive,
        on_cancel=told.on_cancel,
        on_lost=told.on_lost,
    )


@pytest.fixture
def thief(bus_settings: BusSettings) -> Iterator[LeaseKeeper]:
    """Another worker that lives: without one, nobody could say that a silent one is dead."""
    with keeper_of(bus_settings, Told(), "thief") as opened:
        yield opened


async def over(seconds: float, bus: Bus, **claim: Any) -> list[Any]:
    """Claims of another worker that look for lost leases all the time."""
    end = time.monotonic() + seconds

    async def look() -> list[Any] | bool:
        return await bus.queue.claim("thief", "m", ANY, sweep=True, **claim) or time.monotonic() > end

    found = await eventually(look, seconds + 5)
    return found if isinstance(found, list) else []


@pytest.mark.parametrize("partitions", [1, 4])
async def test_kept_leases_outlive_their_length(bus_settings: BusSettings, told: Told, partitions: int) -> None:
    settings = bus_settings.model_copy(update={"partitions": partitions})
    async with open_bus(settings, name="test") as bus:
        with keeper_of(settings, told) as keeper:
            for _ in range(8):
                await queued(bus)
            for claim in await bus.queue.claim("w:1", "m", ANY):
                keeper.hold(claim.lease)
            assert await over(3 * LEASE_S, bus) == []
            assert (told.lost, told.cancelled) == ([], [])


async def test_a_dropped_lease_runs_out(bus: Bus, keeper: LeaseKeeper, told: Told) -> None:
    await queued(bus)
    lease = (await claimed(bus)).lease
    keeper.hold(lease)
    keeper.drop(lease.job_id)
    keeper.drop("unknown")
    [taken] = await over(5 * LEASE_S, bus)
    assert taken.job.id == lease.job_id
    assert told.lost == []


@pytest.mark.usefixtures("thief")
async def test_a_hung_engine_loses_its_leases(bus: Bus, keeper: LeaseKeeper, told: Told) -> None:
    await queued(bus)
    lease = (await claimed(bus)).lease
    keeper.hold(lease)
    told.is_engine_alive = False
    assert len(await over(5 * LEASE_S, bus)) == 1
    await told.wait()
    assert told.lost == [lease.job_id]


async def test_a_lease_that_somebody_else_has_is_told_as_lost_and_not_stolen_back(
    bus: Bus, keeper: LeaseKeeper, told: Told, behind: Behind
) -> None:
    job = await queued(bus)
    keeper.hold((await claimed(bus)).lease)
    await behind.let_lease_run_out(job.id)
    taken = await over(5, bus)
    if not taken:  # the keeper renewed in between
        pytest.fail("the lease was renewed although it had been taken")
    await told.wait()
    assert told.lost == [job.id]
    lane = behind.keys.lane(0, "m", "interactive", "default")
    [row] = await behind.client.xpending_range(lane, "workers", "-", "+", 10)
    assert row["consumer"] == b"thief"


async def test_a_cancel_is_told_once(bus: Bus, keeper: LeaseKeeper, told: Told) -> None:
    job = await queued(bus)
    keeper.hold((await claimed(bus)).lease)
    await bus.queue.cancel(job.id)
    await told.wait()
    assert await over(2 * LEASE_S, bus) == []
    assert told.cancelled == [job.id]


@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_job_is_cancelled_when_the_only_one_who_waits_is_long_gone(
    bus: Bus, keeper: LeaseKeeper, told: Told, behind: Behind, is_durable: bool
) -> None:
    job = await queued(bus, is_durable=is_durable)

    async def is_missed() -> bool:
        return await behind.field(job.id, "unheard_ms") is not None

    async with bus.log.follow(job.id):
        keeper.hold((await claimed(bus)).lease)
        await behind.client.hset(behind.keys.job(job.id), "unheard_ms", 1)
        if not is_durable:
            await eventually(lambda: negated(is_missed()))
        await asyncio.sleep(LEASE_S)
    assert told.cancelled == []
    if is_durable:
        await asyncio.sleep(LEASE_S)
        assert told.cancelled == []
    else:
        await eventually(is_missed)
        await behind.client.hset(behind.keys.job(job.id), "unheard_ms", 1)
        await told.wait()
        assert told.cancelled == [job.id]


async def test_whether_somebody_waits_is_looked_at_anew_by_each_holder(
    bus: Bus, keeper: LeaseKeeper, told: Told, behind: Behind
) -> None:
    job = await queued(bus)
    first = await claimed(bus)
    await behind.client.hset(behind.keys.job(job.id), "unheard_ms", 1)
    await bus.queue.release(first.lease)
    keeper.hold((await claimed(bus, sweep=True)).lease)

    async def is_missed_anew() -> bool:
        return await behind.field(job.id, "unheard_ms") not in (None, "1")

    await eventually(is_missed_anew)
    assert told.cancelled == []


async def negated(finding: Awaitable[bool]) -> bool:
    return not await finding


async def test_an_ended_job_is_told_as_lost(bus: Bus, keeper: LeaseKeeper, told: Told, behind: Behind) -> None:
    job = await queued(bus)
    keeper.hold((await claimed(bus)).lease)
    await behind.client.delete(behind.keys.job(job.id))
    await told.wait()
    assert told.lost == [job.id]


async def test_a_server_away_for_a_whole_lease_loses_all_leases(
    bus: Bus, keeper: LeaseKeeper, told: Told, behind: Behind
) -> None:
    jobs = [await queued(bus) for _ in range(2)]
    for claim in await bus.queue.claim("w1", "m", ANY):
        keeper.hold(claim.lease)
    begun = time.monotonic()
    await behind.client.execute_command("CLIENT", "PAUSE", round(LEASE_S * 3000), "ALL")
    await told.wait()
    assert sorted(told.lost) == sorted(job.id for job in jobs)
    assert LEASE_S * 0.7 < time.monotonic() - begun < LEASE_S * 2.5


async def test_a_short_absence_of_the_server_costs_nothing(
    bus: Bus, keeper: LeaseKeeper, told: Told, behind: Behind
) -> None:
    await queued(bus)
    keeper.hold((await claimed(bus)).lease)
    for _ in range(3):
        await behind.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await behind.client.script_flush()
        assert await over(LEASE_S / 2, bus) == []
    assert told.lost == []


async def test_a_callback_that_fails_stops_no_renewals(bus: Bus, bus_settings: BusSettings, behind: Behind) -> None:
    news = threading.Event()

    def fail(_: str) -> None:
        news.set()
        raise RuntimeError("a bug")

    async def is_told() -> bool:
        return news.is_set()

    with LeaseKeeper(bus_settings, "w1", is_alive=lambda: True, on_cancel=fail, on_lost=fail) as keeper:
        gone = await queued(bus)
        keeper.hold((await claimed(bus)).lease)
        await behind.client.delete(behind.keys.job(gone.id))
        await eventually(is_told)
        await queued(bus)
        keeper.hold((await claimed(bus)).lease)
        assert await over(3 * LEASE_S, bus) == []


def test_a_keeper_stops_at_once(bus_settings: BusSettings, told: Told) -> None:
    with keeper_of(bus_settings.model_copy(update={"lease_s": 60.0}), told):
        begun = time.monotonic()
    assert time.monotonic() - begun < 1


async def test_a_job_that_its_worker_has_just_ended_is_not_lost(
    bus: Bus, bus_settings: BusSettings, told: Told
) -> None:
    keeper = keeper_of(bus_settings, told)  # its thread is not started
    ended, taken = [(await claimed(bus)).lease for _ in range(2) if await queued(bus)]
    keeper.hold(ended)
    keeper.hold(taken)
    assert await bus.queue.finish(ended, Finished(status="succeeded"), 1)
    keeper.beat()
    assert told.lost == []


@pytest.mark.parametrize("is_stopped", [True, False], ids=["with the server", "alone"])
async def test_a_job_is_no_poison_because_its_worker_and_its_server_ended_together(
    tmp_path: Path, told: Told, is_stopped: bool
) -> None:
    """As in a power cut, or when a whole stack is killed."""
    with EmbeddedServer() as server:
        job_id = ""
        for number in range(4):
            settings = BusSettings(redis_url=SecretStr(server.url or server.start(tmp_path)), lease_s=LEASE_S)
            async with open_bus(settings, name="test") as bus:
                job_id = job_id or (await queued(bus)).id
                with keeper_of(settings, told, f"w{number}") as keeper:
                    if (taken := await taken_or_dead(bus, f"w{number}", job_id)) is None:
                        assert (is_stopped, number) == (False, 3)
                        return
                    keeper.hold(taken.lease)
                    assert (taken.attempt, taken.deaths) == (number + 1, 0 if is_stopped else number)
                    await asyncio.sleep(LEASE_S)  # it is heard
            if is_stopped:
                await asyncio.to_thread(server.stop)
    assert is_stopped


async def taken_or_dead(bus: Bus, worker_id: str, job_id: str) -> Claimed | None:
    """The job, when it can be had; None when it has been given up."""
    async with asyncio.timeout(10):
        while True:
            if taken := await bus.queue.claim(worker_id, "m", ANY, sweep=True):
                return taken[0]
            record = await bus.queue.record(job_id)
            assert record is not None
            if record.status is JobStatus.FAILED:
                return None
            await asyncio.sleep(LEASE_S / 10)
