"""Lines of a batch: each leaves the plan once, ends once, and is counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shared.batches import BatchStatus, Segment, Usage
from shared.bus import Bus, Chunk, Claimed, Fed, Lease, Unfed, Wanted, open_bus
from shared.bus.batchsteps import MAX_COLLECTED
from shared.errors import BusUnavailable
from shared.jobs import JobStatus
from shared.settings import BusSettings
from tests.shared.bus.bulk import (
    RETENTION_S,
    SUCCEEDED,
    WIDTH,
    fed,
    job_of,
    jobs_of,
    lines,
    made,
    planned,
    record,
    refused,
    work,
)
from tests.shared.bus.conftest import ANY, Behind, a_job, eventually, keeper, tokens


async def all_claimed(bus: Bus) -> list[Claimed]:
    return await bus.queue.claim("w1", "m", Wanted(0, 0, 1000))


async def one(bus: Bus, worker: str = "w1", *, sweep: bool = False) -> Lease:
    [claim] = await bus.queue.claim(worker, "m", Wanted(0, 0, 1), sweep=sweep)
    return claim.lease


class TestFeeding:
    async def test_a_line_is_a_job_that_waits_no_longer_than_its_batch(self, bus: Bus, behind: Behind) -> None:
        batch, hold = await planned(bus, 2, window_s=60.0)
        [line, _] = lines(batch, [0, 1])
        assert line.job is not None
        line = line._replace(job=line.job.model_copy(update={"is_durable": True}))
        await bus.batches.feed(hold, [line])
        [claim] = await all_claimed(bus)
        assert claim.job == line.job
        assert claim.deadline_at == (await record(bus, batch)).expires_at < claim.enqueued_at + line.job.deadline_s
        assert (await bus.queue.page("t")).records == [], "it is nobody's durable job"

    async def test_lines_that_are_fed_again_are_the_same_lines(self, bus: Bus) -> None:
        batch, hold = await planned(bus, 6)
        await bus.batches.feed(hold, lines(batch, [0, 1]))
        assert await bus.batches.feed(hold, lines(batch, range(4))) == (4, None, True)
        assert await bus.batches.feed(hold, lines(batch, range(4))) == (4, None, True)
        found = await record(bus, batch)
        assert (found.n_fed, found.plan_offset, found.n_in_flight) == (4, 4 * WIDTH, 4)
        assert len(await all_claimed(bus)) == 4

    async def test_nor_does_a_line_come_back_that_was_collected(self, bus: Bus) -> None:
        batch, hold = await fed(bus, 2)
        await work(bus, 2)
        segment = Segment(number=0, n_output=2, output_bytes=2)
        await bus.batches.collect(hold, segment, job_ids=jobs_of(batch, [0, 1]), n_completed=2, n_failed=0)
        assert await bus.batches.feed(hold, lines(batch, [0, 1])) == (2, None, True)
        assert await all_claimed(bus) == []
        assert (await record(bus, batch)).n_in_flight == 0

    async def test_many_go_in_the_order_of_the_plan(self, bus: Bus) -> None:
        batch, _ = await fed(bus, 350)
        claims = await all_claimed(bus)
        assert [claim.job.id for claim in claims] == jobs_of(batch, range(350))

    async def test_long_lines_go_a_few_at_a_time(self, bus: Bus) -> None:
        batch, hold = await planned(bus, 30)
        long = [line._replace(start=line.start * 3000, stop=line.stop * 3000) for line in lines(batch, range(30))]
        assert await bus.batches.feed(hold, long) == (30, None, True)
        assert await bus.batches.flights(batch.id) == jobs_of(batch, range(30))

    async def test_when_the_queue_is_full_the_rest_waits_and_nothing_is_left_out(
        self, bus_settings: BusSettings
    ) -> None:
        async with open_bus(bus_settings.model_copy(update={"max_queued_per_tenant": 5}), name="test") as bus:
            batch, hold = await planned(bus, 12)
            some = lines(batch, range(4))
            assert await bus.batches.feed(hold, [*some, refused(batch, 4), *lines(batch, range(5, 12))]) == Fed(6, 30.0)
            await work(bus, 3)
            more = await bus.batches.feed(hold, lines(batch, range(6, 12)))
            assert more.n_fed == 3
            assert more.retry_after_s is not None
            assert (await record(bus, batch)).n_fed == 9
            assert [claim.job.id for claim in await all_claimed(bus)] == jobs_of(batch, [3, 5, 6, 7, 8])

    async def test_lines_are_not_fed_that_are_further_on_than_the_batch(self, bus: Bus) -> None:
        """A server that lost its last second knows less than whoever holds the batch."""
        batch, hold = await planned(bus, 3)
        assert await bus.batches.feed(hold, lines(batch, [1, 2])) == (0, None, True)
        assert await bus.batches.feed(hold, lines(batch, [0])) == (1, None, True)
        assert await bus.batches.feed(hold, [refused(batch, 2)]) == (0, None, True)
        assert await bus.batches.finalize(hold, "expired")
        segment = Segment(number=0, n_error=1, error_bytes=1)
        unfed = Unfed(1, 2 * WIDTH, 3 * WIDTH)
        assert not await bus.batches.collect(hold, segment, job_ids=(), n_completed=0, n_failed=1, unfed=unfed)

    async def test_no_line_goes_before_one_that_found_no_room(self, bus_settings: BusSettings) -> None:
        async with open_bus(bus_settings.model_copy(update={"max_queued": 1}), name="test") as bus:
            batch, hold = await planned(bus, 3)
            some = lines(batch, range(3))
            assert some[2].job is not None
            some[2] = some[2]._replace(job=some[2].job.model_copy(update={"model": "idle"}))
            assert await bus.batches.feed(hold, some) == Fed(1, 30.0)
            assert await bus.batches.flights(batch.id) == jobs_of(batch, [0])

    async def test_a_cancel_between_two_lines_is_where_they_end(self, bus: Bus) -> None:
        batch, hold = await planned(bus, 1500)
        feeding = asyncio.create_task(bus.batches.feed(hold, lines(batch, range(1500))))
        while not (await record(bus, batch)).n_fed:  # noqa: ASYNC110 - what happens in the server sets no event here
            await asyncio.sleep(0)
        await bus.batches.cancel(batch.id)
        told = await feeding
        found = await record(bus, batch)
        assert told == (found.n_fed, None, True)
        assert found.n_fed < 1500
        assert await bus.batches.flights(batch.id) == jobs_of(batch, range(found.n_fed))
        assert await bus.batches.feed(hold, lines(batch, range(found.n_fed, 1500))) == (0, None, True)

    async def test_no_line_is_fed_when_its_time_is_over(self, bus: Bus, behind: Behind) -> None:
        batch, hold = await planned(bus, 2)
        await behind.client.hset(behind.keys.batch(batch.id), "expires_ms", 1)
        assert await bus.batches.feed(hold, [*lines(batch, [0]), refused(batch, 1)]) == (0, None, True)
        assert await bus.batches.feed(hold, [refused(batch, 0)]) == (0, None, True)

    async def test_a_job_that_somebody_made_before_is_the_lines(self, bus: Bus) -> None:
        batch, hold = await planned(bus, 2)
        for number in (0, 1):
            await bus.queue.enqueue(a_job(bus, tenant="t").model_copy(update={"id": job_of(batch, number)}))
        await bus.queue.cancel(job_of(batch, 0))
        assert await bus.batches.feed(hold, lines(batch, [0, 1])) == (2, None, True)
        assert [line.job_id for line in await bus.batches.ended(batch.id)] == [job_of(batch, 0)]
        await bus.queue.cancel(job_of(batch, 1))
        assert {line.job_id for line in await bus.batches.ended(batch.id)} == set(jobs_of(batch, [0, 1]))

    async def test_a_full_server_takes_no_lines_and_what_is_there_comes_to_its_end(
        self, bus: Bus, behind: Behind
    ) -> None:
        batch, hold = await fed(bus, 2)
        another, other = await planned(bus, 1)
        await behind.client.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(BusUnavailable):
                await bus.batches.feed(other, lines(another, [0]))
            await work(bus, 2)
            assert await bus.batches.renew(hold)
            segment = Segment(number=0, n_output=2, output_bytes=2)
            assert await bus.batches.finalize(hold, "over")
            assert await bus.batches.collect(hold, segment, job_ids=jobs_of(batch, [0, 1]), n_completed=2, n_failed=0)
            assert await bus.batches.finish(hold, RETENTION_S)
            await bus.batches.rest(other, 0.0)
            [due] = await bus.batches.due()
            assert await bus.batches.hold(due.batch_id, due.epoch, 5.0)
            assert (await bus.batches.cancel(due.batch_id)).status is BatchStatus.CANCELLING
        finally:
            await behind.client.config_set("maxmemory", "0")

    async def test_a_line_of_another_batch_is_refused(self, bus: Bus) -> None:
        _, hold = await planned(bus, 1)
        other = await made(bus)
        with pytest.raises(ValueError, match="lines"):
            await bus.batches.feed(hold, lines(other, [0]))


async def by_a_worker(bus: Bus, behind: Behind, job_id: str) -> None:
    lease = await one(bus)
    for _ in range(2):
        assert await bus.queue.finish(lease, SUCCEEDED, 1)


async def by_cancel_while_it_waits(bus: Bus, behind: Behind, job_id: str) -> None:
    for _ in range(2):
        await bus.queue.cancel(job_id)


async def by_cancel_at_work(bus: Bus, behind: Behind, job_id: str) -> None:
    lease = await one(bus)
    await bus.queue.cancel(job_id)
    await bus.queue.release(lease)


async def by_the_reaper(bus: Bus, behind: Behind, job_id: str) -> None:
    await behind.let_deadline_pass(job_id)
    for _ in range(2):
        await bus.queue.reap()


async def by_the_claim_that_finds_it_overdue(bus: Bus, behind: Behind, job_id: str) -> None:
    await behind.let_deadline_pass(job_id)
    assert await bus.queue.claim("w1", "m", ANY) == []


async def by_a_third_death(bus: Bus, behind: Behind, job_id: str) -> None:
    for worker in ("w1", "w2", "w3"):
        assert (await bus.queue.claim(worker, "m", ANY, sweep=True))[0].job.id == job_id
        await behind.let_lease_run_out(job_id)
    assert await bus.queue.claim("w4", "m", ANY, sweep=True) == []


async def as_unreadable(bus: Bus, behind: Behind, job_id: str) -> None:
    await behind.client.hset(behind.keys.job(job_id), "job", "{")
    assert await bus.queue.claim("w1", "m", ANY) == []


class TestEnding:
    """Each line that ends stands among its batch's ended lines once, however it ended."""

    @pytest.mark.parametrize(
        ("end", "status"),
        [
            (by_a_worker, JobStatus.SUCCEEDED),
            (by_cancel_while_it_waits, JobStatus.CANCELLED),
            (by_cancel_at_work, JobStatus.CANCELLED),
            (by_the_reaper, JobStatus.EXPIRED),
            (by_the_claim_that_finds_it_overdue, JobStatus.EXPIRED),
            (by_a_third_death, JobStatus.FAILED),
            (as_unreadable, JobStatus.FAILED),
        ],
        ids=lambda each: getattr(each, "__name__", ""),
    )
    async def test_it_can_be_collected_once(
        self, bus: Bus, behind: Behind, end: Callable[[Bus, Behind, str], Awaitable[None]], status: JobStatus
    ) -> None:
        batch, _ = await fed(bus, 1)
        await end(bus, behind, job_of(batch, 0))
        assert await bus.batches.ended(batch.id) == [(job_of(batch, 0), status, None)]
        found = await bus.queue.record(job_of(batch, 0))
        assert found is not None
        assert found.finished is not None, "with its result"
        assert await bus.outbox.read() == [], "its batch is told of, not it"
        assert await bus.batches.lost(batch.id) == []

    async def test_what_ended_first_comes_first(self, bus: Bus) -> None:
        batch, _ = await fed(bus, 3)
        for number in (2, 0, 1):
            await bus.queue.cancel(job_of(batch, number))
            await asyncio.sleep(0.002)  # the bus's clock counts milliseconds
        assert [line.job_id for line in await bus.batches.ended(batch.id)] == jobs_of(batch, (2, 0, 1))
        assert [line.job_id for line in await bus.batches.ended(batch.id, 1)] == [job_of(batch, 2)]

    async def test_nobody_need_listen_to_a_line(self, bus: Bus, bus_settings: BusSettings, behind: Behind) -> None:
        """Anybody else's job is cancelled when nobody has listened for a while."""
        batch, _ = await fed(bus, 1)
        lease = await one(bus)
        with keeper(bus_settings.model_copy(update={"lease_s": 0.3}), "w1") as keeping:
            keeping.hold(lease)
            await eventually(lambda: behind.heard("w1"))
            await behind.client.hset(behind.keys.job(lease.job_id), "unheard_ms", 1)
            await asyncio.sleep(0.3)
        assert await behind.field(lease.job_id, "cancel") is None
        assert (await record(bus, batch)).n_in_flight == 1

    async def test_a_line_whose_job_vanished_is_noticed(self, bus: Bus, behind: Behind) -> None:
        batch, hold = await fed(bus, 3)
        await behind.client.delete(behind.keys.job(job_of(batch, 1)))
        assert await bus.batches.lost(batch.id) == [job_of(batch, 1)]
        assert await bus.batches.places(batch.id, [job_of(batch, 1)]) == [WIDTH], "where its line can be read"
        segment = Segment(number=0, n_error=1, error_bytes=2)
        assert await bus.batches.collect(hold, segment, job_ids=jobs_of(batch, [1]), n_completed=0, n_failed=1)
        assert await bus.batches.lost(batch.id) == []
        assert await bus.batches.flights(batch.id) == jobs_of(batch, [0, 2])

    async def test_so_is_one_that_vanished_after_its_end(self, bus: Bus, behind: Behind) -> None:
        batch, _ = await fed(bus, 1)
        await work(bus, 1)
        await behind.client.delete(behind.keys.job(job_of(batch, 0)))
        assert await bus.batches.ended(batch.id) == [(job_of(batch, 0), None, None)]

    async def test_one_that_an_older_program_ended_is_found(self, bus: Bus, behind: Behind) -> None:
        batch, _ = await fed(bus, 2)
        await work(bus, 1)
        await behind.client.delete(f"{behind.keys.batch(batch.id)}:ended")
        assert await bus.batches.lost(batch.id) == []
        assert await bus.batches.ended(batch.id) == [(job_of(batch, 0), JobStatus.SUCCEEDED, None)]

    async def test_what_is_not_collected_cannot_be_forgotten(self, bus: Bus) -> None:
        batch, _ = await fed(bus, 1)
        await work(bus, 1)
        assert not await bus.queue.forget(job_of(batch, 0), "t")
        assert [line.status for line in await bus.batches.ended(batch.id)] == [JobStatus.SUCCEEDED]

    async def test_a_line_that_outlives_its_batch_goes_like_any_job(self, bus: Bus, behind: Behind) -> None:
        batch, _ = await fed(bus, 1)
        await behind.client.delete(behind.keys.batch(batch.id))
        await work(bus, 1)
        assert not await behind.client.exists(f"{behind.keys.batch(batch.id)}:ended")
        assert 0 < await behind.client.pttl(behind.keys.job(job_of(batch, 0))) <= 3600_000


class TestCollecting:
    async def test_a_segment_is_counted_once(self, bus: Bus) -> None:
        batch, hold = await fed(bus, 3)
        await work(bus, 3)
        first = Segment(number=0, mark="a", n_output=1, output_bytes=7, n_error=1, error_bytes=5)
        counts = {"n_completed": 1, "n_failed": 1, "usage": Usage(input_tokens=2**40, output_tokens=1)}
        for _ in range(3):
            assert await bus.batches.collect(hold, first, job_ids=jobs_of(batch, [0, 1]), **counts)
        other = first.model_copy(update={"n_output": 2})
        assert not await bus.batches.collect(hold, other, job_ids=jobs_of(batch, [0, 1]), **counts), "not what was said"
        for number in (0, 2):
            assert not await bus.batches.collect(
                hold,
                Segment(number=number, n_output=1, output_bytes=1),
                job_ids=jobs_of(batch, [2]),
                n_completed=1,
                n_failed=0,
            )
        last = Segment(number=1, n_output=1, output_bytes=7)
        assert await bus.batches.collect(
            hold, last, job_ids=jobs_of(batch, [2]), n_completed=1, n_failed=0, usage=Usage(input_tokens=1)
        )
        found = await record(bus, batch)
        assert (found.n_completed, found.n_failed, found.n_segments, found.n_in_flight) == (2, 1, 2, 0)
        assert found.usage == Usage(input_tokens=2**40 + 1, output_tokens=1)
        assert await bus.batches.segments(batch.id) == [first, last]

    async def test_with_it_all_that_is_kept_of_its_lines_goes(self, bus: Bus, behind: Behind) -> None:
        batch, hold = await planned(bus, 3)
        await bus.batches.feed(hold, [*lines(batch, [0, 1]), refused(batch, 2)])
        lease = await one(bus)
        await bus.queue.append([Chunk(lease, 1, tokens("word"))])
        await bus.queue.finish(lease, SUCCEEDED, 2)
        await bus.queue.cancel(job_of(batch, 1))
        segment = Segment(number=0, n_output=1, output_bytes=7, n_error=2, error_bytes=5)
        assert await bus.batches.collect(hold, segment, job_ids=jobs_of(batch, range(3)), n_completed=1, n_failed=2)
        for kind in ("job", "log"):
            assert not [name async for name in behind.client.scan_iter(f"{behind.keys.prefix(0)}{kind}:*")]
        names = [name.decode().rpartition(batch.id)[2] async for name in behind.client.scan_iter(f"*{batch.id}*")]
        assert sorted(names) == ["", ":segments"]
        assert not await behind.client.zcard(behind.keys.due(0))
        assert await bus.queue.claim("w1", "m", ANY) == []
        await bus.queue.reap()
        assert not await behind.client.exists(behind.keys.lanes(0))

    async def test_a_line_at_work_is_not_collected(self, bus: Bus) -> None:
        batch, hold = await fed(bus, 2)
        await work(bus, 1)
        both = Segment(number=0, n_output=2, output_bytes=2)
        assert not await bus.batches.collect(hold, both, job_ids=jobs_of(batch, [0, 1]), n_completed=2, n_failed=0)
        assert (await record(bus, batch)).n_segments == 0

    async def test_nor_is_a_line_that_is_not_in_flight(self, bus: Bus) -> None:
        batch, hold = await fed(bus, 1)
        await work(bus, 1)
        segment = Segment(number=0, n_output=2, output_bytes=2)
        assert not await bus.batches.collect(hold, segment, job_ids=jobs_of(batch, [0, 1]), n_completed=2, n_failed=0)

    async def test_counts_are_those_of_the_lines(self, bus: Bus) -> None:
        batch, hold = await fed(bus, 1)
        await work(bus, 1)
        segment = Segment(number=0, n_output=1, output_bytes=2)
        for n_failed in (0, 2):
            with pytest.raises(ValueError, match="each line"):
                await bus.batches.collect(hold, segment, job_ids=jobs_of(batch, [0]), n_completed=0, n_failed=n_failed)

    async def test_no_more_than_some_hundreds_are_collected_at_once(self, bus: Bus) -> None:
        batch, hold = await fed(bus, MAX_COLLECTED + 1)
        ids = await bus.batches.flights(batch.id)
        await bus.batches.recall(ids)
        ended = [line.job_id for line in await bus.batches.ended(batch.id)]
        assert len(ended) == MAX_COLLECTED
        segment = Segment(number=0, n_error=len(ids), error_bytes=2)
        with pytest.raises(ValueError, match="more than"):
            await bus.batches.collect(hold, segment, job_ids=ids, n_completed=0, n_failed=len(ids))
        assert await bus.batches.collect(hold, segment, job_ids=ended, n_completed=0, n_failed=len(ended))
        assert len(await bus.batches.ended(batch.id)) == 1
