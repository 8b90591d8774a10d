"""Work for one worker alone, and what becomes of it when that worker is gone."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from shared.bus import Bus, Chunk, Claimed, Verdict, Wanted
from shared.events import Failure, Finished
from shared.jobs import Job, JobStatus, Lane, SetAdapters, SlotAction
from shared.settings import BusSettings
from tests.shared.bus.conftest import ANY, Behind, a_job, eventually, keeper, tokens

BOUND = SlotAction(action="erase", slot=0)
OWN = Wanted(0, 0, 0, own=8)
BEREFT = Failure(code="not_ready", message="The worker that it was for is gone.")


async def sent(bus: Bus, worker: str, **fields: object) -> Job:
    job = a_job(bus, **fields)
    await bus.queue.enqueue(job, worker=worker)
    return job


async def dies(behind: Behind, worker: str) -> None:
    """As if others had been heard for long, and it had not."""
    seconds, _ = await behind.client.time()
    long_ago, now = 1000 * (seconds - 3600), 1000 * seconds
    await behind.client.hset(behind.keys.beats(0), mapping={worker: long_ago, "@since": long_ago, "@last": now})
    await behind.client.expire(behind.keys.beats(0), 60)


async def swept(bus: Bus, worker: str = "w2", wanted: Wanted = ANY) -> list[Claimed]:
    return await bus.queue.claim(worker, "m", wanted, sweep=True)


async def failure_of(bus: Bus, job: Job) -> Failure | None:
    record = await bus.queue.record(job.id)
    assert record
    return record.failure


async def test_it_takes_no_room_of_quick_work_nor_of_any_lane(bus: Bus) -> None:
    jobs = [await sent(bus, "w1"), await sent(bus, "w1", request=BOUND)]
    assert await bus.queue.claim("w1", "m", Wanted(8, 8, 8)) == []
    assert [(claim.job.id, claim.is_own) for claim in await bus.queue.claim("w1", "m", OWN)] == [
        (job.id, True) for job in jobs
    ]


@pytest.mark.parametrize("lane", Lane)
async def test_a_generation_that_waited_for_a_dead_worker_is_everybodys(bus: Bus, behind: Behind, lane: Lane) -> None:
    job = await sent(bus, "w1", lane=lane)
    assert await swept(bus) == [], "nobody has been heard, so nobody is known to be dead"
    await dies(behind, "w1")
    other = Wanted(8, 0, 8) if lane is Lane.INTERACTIVE else Wanted(8, 8, 0)
    assert await swept(bus, wanted=other) == [], "it waits in its own lane"
    [claim] = await swept(bus)
    assert (claim.job, claim.is_own, claim.deaths) == (job, False, 0)
    assert await bus.queue.finish(claim.lease, Finished(status="succeeded"), 1)


async def test_a_stream_of_a_dead_worker_goes_on_where_it_was(bus: Bus, behind: Behind) -> None:
    job = await sent(bus, "w1")
    [claim] = await bus.queue.claim("w1", "m", OWN)
    assert await bus.queue.append([Chunk(claim.lease, 1, tokens("so", "far"))]) == [Verdict.OK]
    await dies(behind, "w1")
    assert await swept(bus) == [], "its lease still runs"
    await behind.let_lease_run_out(job.id)
    [again] = await swept(bus)
    assert (again.n_events, again.deaths, again.attempt, again.is_own) == (2, 1, 2, False)
    assert await bus.queue.append([Chunk(claim.lease, 3, tokens("late"))]) == [Verdict.LOST]
    assert await bus.queue.append([Chunk(again.lease, 3, tokens("and", "on"))]) == [Verdict.OK]


async def test_when_its_second_worker_dies_too_a_third_has_it(bus: Bus, behind: Behind) -> None:
    job = await sent(bus, "w1")
    await dies(behind, "w1")
    [_] = await swept(bus, "w2")
    await behind.let_lease_run_out(job.id)
    await dies(behind, "w2")
    [third] = await swept(bus, "w3")
    assert (third.job.id, third.deaths) == (job.id, 1)


@pytest.mark.parametrize("request_", [BOUND, SetAdapters(adapters=())], ids=["slot", "adapters"])
@pytest.mark.parametrize("was_claimed", [False, True], ids=["waiting", "running"])
@pytest.mark.parametrize("who", ["sweep", "reaper"])
async def test_what_only_the_dead_could_do_ends_at_once(
    bus: Bus, behind: Behind, request_: SlotAction | SetAdapters, was_claimed: bool, who: str
) -> None:
    job = await sent(bus, "w1", request=request_)
    if was_claimed:
        [_] = await bus.queue.claim("w1", "m", OWN)
        await behind.let_lease_run_out(job.id)
    await dies(behind, "w1")
    if who == "sweep":
        assert await swept(bus, wanted=Wanted(0, 0, 1)) == []
    else:
        await bus.queue.reap()
    assert await failure_of(bus, job) == BEREFT
    assert (await behind.log(job.id))[-1][1] == {"end": "failed"}


async def test_who_leaves_in_good_order_need_not_be_waited_for(
    bus: Bus, behind: Behind, bus_settings: BusSettings
) -> None:
    with ExitStack() as alive:
        for worker in ("w1", "w2"):
            alive.enter_context(keeper(bus_settings, worker))
        await eventually(lambda: behind.heard("w1"))
        running, waiting = await sent(bus, "w1"), await sent(bus, "w1")
        bound = await sent(bus, "w1", request=BOUND)
        [held] = await bus.queue.claim("w1", "m", Wanted(0, 0, 0, own=1))
        assert await swept(bus) == []
        await bus.queue.leave("w1", "m")
        assert [claim.job.id for claim in await swept(bus)] == [waiting.id], "what it holds is still its own"
        assert await failure_of(bus, bound) == BEREFT
        assert await bus.queue.release(held.lease)
        assert [claim.job.id for claim in await swept(bus)] == [running.id]


async def test_what_only_a_worker_can_do_ends_when_it_gives_it_back(bus: Bus) -> None:
    job = await sent(bus, "w1", request=BOUND)
    [claim] = await bus.queue.claim("w1", "m", OWN)
    assert await bus.queue.release(claim.lease)
    assert await bus.queue.release(claim.lease), "said again"
    assert await failure_of(bus, job) == BEREFT


async def test_a_living_worker_keeps_its_work(bus: Bus, behind: Behind, bus_settings: BusSettings) -> None:
    with keeper(bus_settings, "w1"):
        await eventually(lambda: behind.heard("w1"))
        jobs = [await sent(bus, "w1"), await sent(bus, "w1", request=BOUND)]
        assert await swept(bus) == []
        await bus.queue.reap()
        claims = await bus.queue.claim("w1", "m", OWN)
        assert [claim.job.id for claim in claims] == [job.id for job in jobs]


async def test_a_server_that_heard_nobody_for_long_takes_nobody_for_dead(bus: Bus, behind: Behind) -> None:
    job = await sent(bus, "w1", request=BOUND)
    await dies(behind, "w1")
    await behind.client.hset(behind.keys.beats(0), mapping={"@last": 1, "@since": 1})
    assert await swept(bus) == []
    await bus.queue.reap()
    record = await bus.queue.record(job.id)
    assert record and record.status is JobStatus.QUEUED


async def test_nothing_of_it_is_left_when_all_is_done(bus: Bus, behind: Behind) -> None:
    for worker, request in (("w1", BOUND), ("w2", BOUND)):
        await sent(bus, worker, request=request)
    await dies(behind, "w1")
    [claim] = await bus.queue.claim("w2", "m", OWN, sweep=True)
    assert await bus.queue.finish(claim.lease, Finished(status="succeeded"), 1)
    await bus.queue.reap()
    names = {name.decode().split(":")[2] for name in await behind.client.keys(f"{behind.keys.prefix(0)}*")}
    assert names <= {"job", "log", "load", "beats"}
    assert not [name for name in await behind.client.hkeys(behind.keys.load(0, "m")) if b":own" in name]
