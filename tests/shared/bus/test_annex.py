"""What is too large for Redis: that it lies in the store, is read as if it did not, and goes with its job."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shared.batches import Segment
from shared.bus import Bus, open_bus
from shared.bus.annex import GRACE_S, LARGE, Reference
from shared.errors import StoreUnavailable
from shared.events import Finished, Text
from shared.jobs import VERSION_OF_REFERENCES, Completion, Job, JobRecord, JobStatus
from shared.settings import BusSettings
from shared.store import Store, open_store
from tests.shared.bus.conftest import ANY, Behind, a_job, claimed
from tests.shared.bus.test_batches import lines, planned
from tests.shared.bus.test_presence import CARD, a_worker

LONG = "x" * (LARGE + 1)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(str(tmp_path / "store")) as opened:
        yield opened


@pytest.fixture
async def sharing(bus_settings: BusSettings, store: Store) -> AsyncIterator[Bus]:
    """As an API has it, and a worker that shares its store."""
    async with open_bus(bus_settings, name="test", store=store) as bus:
        await announce(bus)
        yield bus


async def announce(bus: Bus, name: str = "w1", marks: frozenset[str] | None = None) -> None:
    stores = tuple(bus.annex.marks if marks is None else marks)
    model = CARD.model_copy(update={"name": "m"})
    await bus.presence.announce(a_worker(name, model=model, stores=stores))


def large_job(bus: Bus, **fields: object) -> Job:
    return a_job(bus, request=Completion(prompts=(LONG,)), body=f'{{"prompt":"{LONG}"}}', is_durable=True, **fields)


def large_end() -> Finished:
    return Finished(status="succeeded", parts=(Text(text=LONG),))


async def objects(store: Store) -> list[str]:
    return sorted([name async for name, _ in store.names("large/")])


async def ended(bus: Bus, job: Job) -> JobRecord:
    """The job after it was queued and its worker has said something large."""
    await bus.queue.enqueue(job)
    one = await claimed(bus)
    assert await bus.queue.finish(one.lease, large_end(), 1)
    record = await bus.queue.record(job.id)
    assert record
    return record


async def test_what_is_large_lies_in_the_store_and_is_read_as_it_was(
    sharing: Bus, store: Store, behind: Behind
) -> None:
    job = large_job(sharing)
    await sharing.queue.enqueue(job)
    n_bytes = await behind.client.memory_usage(behind.keys.job(job.id))
    assert n_bytes < 4000
    assert len(await objects(store)) == 2
    one = await claimed(sharing)
    assert one.job.request == job.request
    await sharing.queue.finish(one.lease, large_end(), 1)
    assert await behind.client.memory_usage(behind.keys.job(job.id)) < 4000
    record = await sharing.queue.record(job.id)
    assert record and (record.body, record.finished, record.is_brief) == (job.body, large_end(), False)


async def test_what_is_small_stays_in_redis(sharing: Bus, store: Store) -> None:
    job = a_job(sharing, is_durable=True, body="{}")
    await sharing.queue.enqueue(job)
    one = await claimed(sharing)
    await sharing.queue.finish(one.lease, Finished(status="succeeded"), 1)
    assert await objects(store) == []
    assert await sharing.queue.record(job.id)


async def test_who_follows_hears_a_large_ending(sharing: Bus) -> None:
    job = a_job(sharing)
    async with sharing.log.follow(job.id, expects=True) as reader:
        await sharing.queue.enqueue(job)
        one = await claimed(sharing)
        await sharing.queue.finish(one.lease, large_end(), 1)
        async with asyncio.timeout(10):
            assert [said.event async for said in reader] == [large_end()]


async def test_a_page_leaves_out_what_is_large_and_says_so(sharing: Bus, bus: Bus) -> None:
    large, small = large_job(sharing), a_job(sharing, is_durable=True, body="{}")
    await ended(sharing, large)
    await sharing.queue.enqueue(small)
    one = await claimed(sharing)
    await sharing.queue.finish(one.lease, Finished(status="succeeded"), 1)
    page = await sharing.queue.page("default")
    assert {record.id: record.is_brief for record in page.records} == {large.id: True, small.id: False}
    assert {record.finished for record in page.records} == {None, Finished(status="succeeded")}
    inline = large_job(bus)
    await ended(bus, inline)
    [newest] = (await bus.queue.page("default", limit=1)).records
    assert (newest.id, newest.is_brief, newest.body) == (inline.id, True, None)


async def test_all_goes_when_the_job_is_forgotten(sharing: Bus, store: Store) -> None:
    job = large_job(sharing)
    await ended(sharing, job)
    assert len(await objects(store)) == 3
    assert await sharing.queue.forget(job.id, "default")
    assert await objects(store) == []


async def test_nothing_is_put_into_a_store_that_a_worker_does_not_read(
    sharing: Bus, store: Store, bus: Bus, behind: Behind
) -> None:
    await announce(sharing, "stranger", frozenset())
    job = large_job(sharing)
    await sharing.queue.enqueue(job)
    assert await objects(store) == []
    one = await claimed(bus)  # by one without a store
    assert one.job.request == job.request
    await bus.queue.finish(one.lease, large_end(), 1)
    assert await objects(store) == []
    record = await sharing.queue.record(job.id)
    assert record and record.finished == large_end()


async def test_a_request_in_the_store_waits_for_a_worker_that_reads_it(sharing: Bus, bus: Bus, behind: Behind) -> None:
    job = large_job(sharing)
    await sharing.queue.enqueue(job)
    assert await behind.field(job.id, "version") == str(VERSION_OF_REFERENCES)
    for is_sweep in (False, True, True):
        assert await bus.queue.claim("stranger", "m", ANY, sweep=is_sweep) == []
    assert await behind.field(job.id, "epoch") == "0", "it was handed out"
    one = await claimed(sharing, sweep=True)
    assert (one.job.id, one.attempt) == (job.id, 1)


async def test_a_result_stays_in_redis_when_the_maker_of_its_job_reads_another_store(
    sharing: Bus, store: Store, bus_settings: BusSettings, tmp_path: Path
) -> None:
    async with open_store(str(tmp_path / "other")) as other, open_bus(bus_settings, name="b", store=other) as elsewhere:
        job = a_job(elsewhere, is_durable=True, body="{}")
        await elsewhere.queue.enqueue(job)
        one = await claimed(sharing)
        await sharing.queue.finish(one.lease, large_end(), 1)
        assert await objects(store) == []
        record = await elsewhere.queue.record(job.id)
        assert record and record.finished == large_end()


async def test_processes_with_one_store_see_the_same_mark(store: Store, bus_settings: BusSettings) -> None:
    async with AsyncExitStack() as stack:
        opening = [stack.enter_async_context(open_bus(bus_settings, name="x", store=store)) for _ in range(8)]
        buses = await asyncio.gather(*opening)
        for bus in buses:
            await bus.annex.look()
        assert len({bus.annex.mark for bus in buses}) == 1


async def test_whoever_has_lost_its_lease_replaces_no_result(sharing: Bus, store: Store, behind: Behind) -> None:
    job = a_job(sharing, is_durable=True, body="{}")
    await sharing.queue.enqueue(job)
    late = await claimed(sharing, "late")
    await behind.let_lease_run_out(job.id)
    one = await claimed(sharing, "w1", sweep=True)
    assert await sharing.queue.finish(one.lease, large_end(), 1)
    before = await objects(store)
    assert not await sharing.queue.finish(late.lease, Finished(status="succeeded", parts=(Text(text="y" * LARGE),)), 1)
    assert await objects(store) == before
    record = await sharing.queue.record(job.id)
    assert record and record.finished == large_end()


async def test_what_is_said_again_is_one_object(sharing: Bus, store: Store) -> None:
    job = a_job(sharing, is_durable=True, body="{}")
    await sharing.queue.enqueue(job)
    one = await claimed(sharing)
    for _ in range(2):
        assert await sharing.queue.finish(one.lease, large_end(), 1)
    assert len(await objects(store)) == 1


async def test_a_job_that_is_refused_leaves_nothing(sharing: Bus, store: Store) -> None:
    first = large_job(sharing).model_copy(update={"id": sharing.queue.new_job_id("key")})
    await sharing.queue.enqueue(first, idempotency_key="key")
    before = await objects(store)
    again = first.model_copy(update={"id": sharing.queue.new_job_id("key")})
    assert (await sharing.queue.enqueue(again, idempotency_key="key")).job_id == first.id
    assert await objects(store) == before


async def test_lines_of_a_batch_take_what_is_large_along_when_they_are_collected(sharing: Bus, store: Store) -> None:
    batch, hold = await planned(sharing, 3)
    fed = [line._replace(job=large_line(line.job)) for line in lines(batch, range(3))]
    assert (await sharing.batches.feed(hold, fed)).n_fed == 3
    assert (await sharing.batches.feed(hold, fed)).n_fed == 3, "said again"
    for claim in await sharing.queue.claim("w1", "m", ANY):
        assert await sharing.queue.finish(claim.lease, large_end(), 1)
    ids = [line.job_id for line in await sharing.batches.ended(batch.id)]
    records = [await sharing.queue.record(job_id) for job_id in ids]
    assert [record and record.finished for record in records] == 3 * [large_end()]
    segment = Segment(number=0, n_output=3, output_bytes=3)
    assert await sharing.batches.collect(hold, segment, job_ids=ids, n_completed=3, n_failed=0)
    left = await objects(store)
    assert not [name for name in left if "result" in name] and len(left) == 6, "of those that were said again"


async def test_lines_that_are_not_taken_leave_nothing(sharing: Bus, store: Store) -> None:
    batch, hold = await planned(sharing, 3)
    await sharing.batches.cancel(batch.id)
    fed = [line._replace(job=large_line(line.job)) for line in lines(batch, range(3))]
    assert (await sharing.batches.feed(hold, fed)).n_fed == 0
    assert await objects(store) == []


def large_line(job: Job | None) -> Job:
    assert job
    return job.model_copy(update={"request": Completion(prompts=(LONG,)), "body": f'{{"prompt":"{LONG}"}}'})


async def test_a_store_that_goes_away_changes_nothing_for_new_work(sharing: Bus, store: Store, tmp_path: Path) -> None:
    await _away(tmp_path)
    job = large_job(sharing)
    record = await ended(sharing, job)
    assert (record.body, record.finished) == (job.body, large_end())


async def test_a_claim_that_cannot_read_its_job_gives_it_back_and_asks_for_no_such_job_until_it_can(
    sharing: Bus, tmp_path: Path, behind: Behind
) -> None:
    job = large_job(sharing)
    await sharing.queue.enqueue(job)
    await _away(tmp_path)
    held: list[str] = []
    claim = await sharing.queue.claim("w1", "m", ANY, on_lease=lambda lease: held.append(lease.job_id))
    assert (claim, held) == ([], [job.id])
    assert await behind.field(job.id, "status") == "queued"
    assert sharing.annex.marks == frozenset()
    assert await sharing.queue.claim("w1", "m", ANY, sweep=True) == []
    await _back(tmp_path)
    await sharing.annex.look()
    one = await claimed(sharing, sweep=True)
    assert (one.job.request, one.attempt) == (job.request, 1)


async def test_a_reader_waits_for_a_store_that_is_away(sharing: Bus, tmp_path: Path) -> None:
    job = a_job(sharing)
    async with sharing.log.follow(job.id, expects=True) as reader:
        await sharing.queue.enqueue(job)
        one = await claimed(sharing)
        await sharing.queue.finish(one.lease, large_end(), 1)
        await _away(tmp_path)
        assert await reader.next(0.5) is None
        with pytest.raises(StoreUnavailable):
            await sharing.queue.record(job.id)
        await _back(tmp_path)
        said = await reader.next(10)
    assert said and said.event == large_end()


async def test_a_result_whose_object_is_gone_is_a_failure_that_says_so(sharing: Bus, store: Store) -> None:
    job = large_job(sharing)
    await ended(sharing, job)
    await store.delete(await objects(store))
    record = await sharing.queue.record(job.id)
    assert record and record.status is JobStatus.FAILED
    assert record.failure and record.failure.code == "unreadable"


async def test_a_request_whose_object_is_gone_ends_its_job(sharing: Bus, store: Store) -> None:
    job = a_job(sharing, request=Completion(prompts=(LONG,)))
    await sharing.queue.enqueue(job)
    await store.delete(await objects(store))
    assert await sharing.queue.claim("w1", "m", ANY) == []
    record = await sharing.queue.record(job.id)
    assert record and record.status is JobStatus.FAILED


async def test_who_has_no_store_says_that_it_lies_elsewhere(sharing: Bus, bus: Bus) -> None:
    job = large_job(sharing)
    await ended(sharing, job)
    with pytest.raises(StoreUnavailable, match="--store-url"):
        await bus.queue.record(job.id)


async def test_what_jobs_have_left_is_swept_and_what_they_have_stays(
    sharing: Bus, store: Store, behind: Behind, tmp_path: Path
) -> None:
    gone, there = large_job(sharing), large_job(sharing)
    for job in (gone, there):
        await ended(sharing, job)
    await behind.client.delete(behind.keys.job(gone.id))
    fresh = await objects(store)
    assert await sharing.annex.sweep() == 0, "who has just put it may be about to write the hash"
    for path in (tmp_path / "store" / "large").rglob("*"):
        os.utime(path, (time.time() - 2 * GRACE_S,) * 2)
    assert await sharing.annex.sweep() == 3
    assert await objects(store) == [name for name in fresh if there.id in name]
    assert (await sharing.queue.record(there.id) or there).finished == large_end()  # type: ignore[union-attr]


async def test_nobody_sweeps_what_is_another_queues(
    sharing: Bus, store: Store, embedded_settings: BusSettings, tmp_path: Path
) -> None:
    await ended(sharing, large_job(sharing))
    before = await objects(store)
    for path in (tmp_path / "store" / "large").rglob("*"):
        os.utime(path, (time.time() - 2 * GRACE_S,) * 2)
    async with open_bus(embedded_settings, name="other", store=store) as other:
        assert await other.annex.sweep() == 0
    assert await objects(store) == before


def test_a_text_is_never_taken_for_a_reference() -> None:
    reference = Reference("a1", 7, "large/x/job_0_a.body-1")
    assert Reference.in_place_of(str(reference)) == Reference.in_place_of(str(reference).encode()) == reference
    for text in ("", "{}", '{"@": 1}'):
        assert Reference.in_place_of(text) is None
        assert Reference.in_place_of(text.encode()) is None


async def _away(tmp_path: Path) -> None:
    """No process can read or write in the folder: it is none any more."""
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("")


async def _back(tmp_path: Path) -> None:
    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")
