"""Batches from their making to their end: what is known of them, and who is told."""

from __future__ import annotations

import asyncio

import pytest

from shared.batches import (
    MAX_FAULTS,
    MAX_FAULTS_IN_LIST,
    BatchStatus,
    LineFault,
    Segment,
    Usage,
    error_file_id,
    output_file_id,
    segment_pieces,
)
from shared.bus import Bus, Unfed, Wanted
from shared.errors import IdempotencyConflict, UnknownBatch
from shared.files import Purpose
from shared.ids import Kind, partition_in
from shared.jobs import JobStatus
from shared.webhooks import Secret, Webhook
from tests.shared.bus.bulk import (
    RETENTION_S,
    WIDTH,
    a_batch,
    fed,
    held,
    jobs_of,
    lines,
    made,
    planned,
    record,
    refused,
    work,
)
from tests.shared.bus.conftest import Behind

OUTPUTS = Segment(number=0, mark="ab", n_output=3, output_bytes=30)


async def test_a_batch_goes_all_its_way(wide: Bus) -> None:
    bus = wide
    batch = await made(bus, metadata={"a": "é"}, output_life_s=7200.0)
    hold = await held(bus, batch)
    bad = Segment(number=0, mark=hold.mark, n_error=1, error_bytes=10)
    faults = (LineFault(code="invalid_json", message="no", line=2),)
    assert await bus.batches.planned(hold, n_total=4, n_planned=3, faults=faults, segment=bad, model="m")
    assert await bus.batches.feed(hold, [*lines(batch, [0, 1]), refused(batch, 2)]) == (3, None, True)
    ids = jobs_of(batch, range(3))
    assert await bus.batches.flights(batch.id) == ids
    assert await bus.batches.places(batch.id, [*ids, "job_0_0a"]) == [0, WIDTH, 2 * WIDTH, None]

    assert set(await work(bus, 2)) == set(ids[:2])
    assert {(line.job_id, line.status, line.refusal) for line in await bus.batches.ended(batch.id)} == {
        (ids[0], JobStatus.SUCCEEDED, None),
        (ids[1], JobStatus.SUCCEEDED, None),
        (ids[2], None, '{"line": 2}'),
    }
    assert await bus.batches.finalize(hold, "over")
    segment = Segment(number=1, mark=hold.mark, n_output=2, output_bytes=20, n_error=1, error_bytes=5)
    usage = Usage(input_tokens=3, cached_tokens=1, output_tokens=4, reasoning_tokens=2)
    assert await bus.batches.collect(hold, segment, job_ids=ids, n_completed=2, n_failed=1, usage=usage)
    assert await bus.batches.segments(batch.id) == [bad, segment]
    assert await bus.batches.segments(batch.id, 1) == [segment]
    assert await bus.batches.finish(hold, RETENTION_S)

    done = await record(bus, batch)
    assert done.status is BatchStatus.COMPLETED
    assert (done.n_total, done.n_planned, done.n_fed, done.plan_offset) == (4, 3, 3, 3 * WIDTH)
    assert (done.n_completed, done.n_failed, done.n_in_flight, done.usage) == (2, 2, 0, usage)
    assert (done.model, done.faults, done.metadata) == ("m", faults, {"a": "é"})
    times = (done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at)
    assert all(times)
    assert list(times) == sorted(filter(None, times))
    assert (done.failed_at, done.expired_at, done.cancelling_at, done.cancelled_at) == (None,) * 4
    assert done.expires_at == done.created_at + batch.window_s
    assert [(row.kind, row.id, row.status) for row in await bus.outbox.read()] == [("batch", batch.id, "completed")]
    for file_id, pieces in (
        (output_file_id(batch.id), (segment_pieces(batch.id, segment)[0],)),
        (error_file_id(batch.id), (segment_pieces(batch.id, bad)[1], segment_pieces(batch.id, segment)[1])),
    ):
        file = await bus.files.record(file_id, "t")
        assert file is not None
        assert (file.pieces, file.purpose) == (pieces, Purpose.BATCH_OUTPUT)
        assert file.expires_at == pytest.approx(file.created_at + 7200.0)
    assert (done.output_file_id, done.error_file_id) == (output_file_id(batch.id), error_file_id(batch.id))
    assert await bus.batches.due() == []


async def test_where_nothing_succeeded_or_nothing_failed_there_is_no_file(bus: Bus) -> None:
    batch, hold = await fed(bus, 1)
    await work(bus, 1)
    await bus.batches.finalize(hold, "over")
    one = Segment(number=0, n_output=1, output_bytes=9)
    assert await bus.batches.collect(hold, one, job_ids=jobs_of(batch, [0]), n_completed=1, n_failed=0)
    assert await bus.batches.finish(hold, RETENTION_S)
    done = await record(bus, batch)
    assert (done.output_file_id, done.error_file_id) == (output_file_id(batch.id), None)
    assert await bus.files.record(error_file_id(batch.id)) is None


class TestMaking:
    async def test_the_bus_sets_the_times(self, bus: Bus) -> None:
        batch = await made(bus, window_s=90.0, completion_window="90s")
        found = await record(bus, batch)
        assert found == batch.model_copy(
            update={"created_at": found.created_at, "expires_at": found.created_at + 90, "status": "validating"}
        )

    async def test_it_is_made_once_for_its_id(self, bus: Bus) -> None:
        batch = a_batch(bus)
        for _ in range(2):
            assert await bus.batches.create(batch, idempotency_key="key", fingerprint="f") == (batch.id, True)
        assert len(await bus.batches.due()) == 1

    async def test_an_idempotency_key_makes_one(self, wide: Bus) -> None:
        batches = [a_batch(wide, id=wide.batches.new_id("key", "t")) for _ in range(8)]
        receipts = await asyncio.gather(
            *(wide.batches.create(batch, idempotency_key="key", fingerprint="f") for batch in batches)
        )
        assert sum(receipt.is_new for receipt in receipts) == 1
        assert len({receipt.batch_id for receipt in receipts}) == 1

    async def test_its_use_for_something_else_conflicts(self, bus: Bus) -> None:
        await bus.batches.create(a_batch(bus), idempotency_key="key", fingerprint="f")
        with pytest.raises(IdempotencyConflict):
            await bus.batches.create(a_batch(bus), idempotency_key="key", fingerprint="g")
        assert (await bus.batches.create(a_batch(bus, tenant="u"), idempotency_key="key", fingerprint="g")).is_new

    async def test_a_job_may_have_the_same_key(self, bus: Bus) -> None:
        await bus.batches.create(a_batch(bus), idempotency_key="key", fingerprint="f")
        assert await bus.queue.made_by("key", lines(a_batch(bus), [0])[0].job) is None  # type: ignore[arg-type]

    async def test_what_a_client_repeats_is_the_newest_that_it_made_of_the_same(self, wide: Bus) -> None:
        ids = []
        for repeats in (True, False, False):
            receipt = await wide.batches.create(a_batch(wide), fingerprint="f", repeats=repeats)
            assert receipt.is_new, "it is the first, or is made on purpose"
            ids.append(receipt.batch_id)
        repeated = await wide.batches.create(a_batch(wide), fingerprint="f", repeats=True)
        created = {batch.id: batch.created_at for batch in (await wide.batches.page("t")).records}
        assert not repeated.is_new
        assert created[repeated.batch_id] == max(created[batch_id] for batch_id in ids)
        for other, fingerprint in (("t", "g"), ("u", "f"), ("t", "")):
            batch = a_batch(wide, tenant=other)
            assert (await wide.batches.create(batch, fingerprint=fingerprint, repeats=True)).is_new

    async def test_a_webhook_comes_back_with_its_secret_and_does_not_print_it(self, bus: Bus) -> None:
        webhook = Webhook(url="https://a.example", secret=Secret.model_validate({"value": "whsec_abc"}))
        batch = await made(bus, webhook=webhook)
        found = await record(bus, batch)
        assert found.webhook == webhook
        assert "whsec_abc" not in repr(found)

    async def test_others_do_not_see_it(self, bus: Bus) -> None:
        batch = await made(bus)
        assert await bus.batches.record(batch.id, "t") is not None
        assert await bus.batches.record(batch.id, "u") is None

    @pytest.mark.parametrize("batch_id", ["", "batch_", "batch_9_" + "0" * 24, "batch_0_" + "0" * 24, "batch_0_é"])
    async def test_what_is_no_batch_is_unknown(self, bus: Bus, batch_id: str) -> None:
        assert await bus.batches.record(batch_id) is None
        with pytest.raises(UnknownBatch):
            await bus.batches.cancel(batch_id)
        with pytest.raises(UnknownBatch):
            await bus.batches.page("t", after=batch_id)


class TestList:
    async def test_a_tenants_are_listed_newest_first_by_pages(self, wide: Bus) -> None:
        ids = [(await made(wide)).id for _ in range(5)]
        await made(wide, tenant="u")
        created = {batch_id: (await wide.batches.record(batch_id)).created_at for batch_id in ids}  # type: ignore[union-attr]
        expected = sorted(ids, key=lambda batch_id: (created[batch_id], batch_id), reverse=True)
        found: list[str] = []
        has_more = True
        while has_more:
            page = await wide.batches.page("t", limit=2, after=found[-1] if found else None)
            found += [batch.id for batch in page.records]
            has_more = page.has_more
        assert found == expected

    async def test_anothers_is_no_place_to_go_on_from(self, bus: Bus) -> None:
        batch = await made(bus, tenant="u")
        with pytest.raises(UnknownBatch):
            await bus.batches.page("t", after=batch.id)

    async def test_those_that_are_gone_are_left_out(self, bus: Bus, behind: Behind) -> None:
        gone, there = await made(bus), await made(bus)
        await behind.client.delete(behind.keys.batch(gone.id))
        assert [batch.id for batch in (await bus.batches.page("t", limit=1)).records] == [there.id]
        for _ in range(20):
            await made(bus, tenant="t")
        assert await behind.client.zscore(behind.keys.batches(0, "t"), gone.id) is None, "the next that come tidy up"


class TestValidation:
    async def test_a_batch_without_a_good_line_has_failed(self, bus: Bus) -> None:
        batch = await made(bus)
        hold = await held(bus, batch)
        faults = (LineFault(code="empty_file", message="no"),)
        for _ in range(2):
            assert await bus.batches.reject(hold, faults, RETENTION_S)
        failed = await record(bus, batch)
        assert (failed.status, failed.faults) == (BatchStatus.FAILED, faults)
        assert failed.failed_at
        assert (await bus.batches.page(failed.tenant)).records == [failed]
        assert [row.status for row in await bus.outbox.read()] == ["failed"]

    @pytest.mark.parametrize("n_good", [0, 1])
    async def test_a_list_of_batches_has_the_first_of_what_is_wrong_with_each(self, bus: Bus, n_good: int) -> None:
        batch = await made(bus)
        hold = await held(bus, batch)
        faults = tuple(LineFault(code="invalid_json", message="no", line=line) for line in range(1, 1101))
        if n_good:
            bad = Segment(number=0, n_error=len(faults), error_bytes=10)
            n_total = len(faults) + n_good
            assert await bus.batches.planned(hold, n_total=n_total, n_planned=n_good, faults=faults, segment=bad)
        else:
            assert await bus.batches.reject(hold, faults, RETENTION_S)
        assert (await record(bus, batch)).faults == faults[:MAX_FAULTS]
        [listed] = (await bus.batches.page(batch.tenant)).records
        assert listed.faults == faults[:MAX_FAULTS_IN_LIST]

    async def test_it_begins_once(self, bus: Bus) -> None:
        batch, hold = await planned(bus, 2)
        begun = await record(bus, batch)
        assert await bus.batches.planned(hold, n_total=9, n_planned=9)
        assert await record(bus, batch) == begun
        assert not await bus.batches.reject(hold, (), RETENTION_S)

    async def test_one_that_was_cancelled_does_not_begin(self, bus: Bus) -> None:
        batch = await made(bus)
        hold = await held(bus, batch)
        assert (await bus.batches.cancel(batch.id)).status is BatchStatus.CANCELLING
        assert not await bus.batches.planned(hold, n_total=1, n_planned=1)
        assert not await bus.batches.reject(hold, (), RETENTION_S)
        assert await bus.batches.finish(hold, RETENTION_S)
        cancelled = await record(bus, batch)
        assert (cancelled.status, cancelled.n_total) == (BatchStatus.CANCELLED, 0)

    async def test_lines_that_are_not_planned_need_a_record(self, bus: Bus) -> None:
        hold = await held(bus, await made(bus))
        with pytest.raises(ValueError, match="record"):
            await bus.batches.planned(hold, n_total=2, n_planned=1)


class TestEnd:
    async def test_it_does_not_end_while_a_line_is_missing(self, bus: Bus) -> None:
        batch, hold = await planned(bus, 3)
        assert not await bus.batches.finalize(hold, "over"), "two are not fed"
        assert not await bus.batches.finish(hold, RETENTION_S), "it goes on"
        await bus.batches.feed(hold, lines(batch, range(3)))
        assert await bus.batches.finalize(hold, "over")
        assert not await bus.batches.finish(hold, RETENTION_S), "all are in flight"
        await work(bus, 3)
        assert not await bus.batches.finish(hold, RETENTION_S), "none is collected"
        assert await bus.batches.collect(hold, OUTPUTS, job_ids=jobs_of(batch, range(3)), n_completed=3, n_failed=0)
        for _ in range(2):
            assert await bus.batches.finish(hold, RETENTION_S)
        assert len(await bus.outbox.read()) == 1

    async def test_lines_that_are_not_fed_any_more_are_recorded_where_the_plan_goes_on(self, bus: Bus) -> None:
        batch, hold = await planned(bus, 5)
        await bus.batches.feed(hold, lines(batch, [0]))
        rest = Segment(number=0, n_error=2, error_bytes=8)
        assert not await bus.batches.collect(
            hold, rest, job_ids=(), n_completed=0, n_failed=2, unfed=Unfed(2, WIDTH, 3 * WIDTH)
        )
        assert await bus.batches.finalize(hold, "expired")
        for _ in range(2):
            assert await bus.batches.collect(
                hold, rest, job_ids=(), n_completed=0, n_failed=2, unfed=Unfed(2, WIDTH, 3 * WIDTH)
            )
        halfway = await record(bus, batch)
        assert (halfway.n_fed, halfway.plan_offset, halfway.n_failed, halfway.n_in_flight) == (3, 3 * WIDTH, 2, 1)
        await work(bus, 1)
        last = Segment(number=1, n_output=1, output_bytes=4, n_error=2, error_bytes=8)
        assert await bus.batches.collect(
            hold, last, job_ids=jobs_of(batch, [0]), n_completed=1, n_failed=2, unfed=Unfed(2, 3 * WIDTH, 5 * WIDTH)
        )
        assert await bus.batches.finish(hold, RETENTION_S)
        expired = await record(bus, batch)
        assert (expired.status, expired.n_completed, expired.n_failed) == (BatchStatus.EXPIRED, 1, 4)
        assert expired.expired_at

    async def test_what_is_kept_of_it_has_its_time(self, bus: Bus, behind: Behind) -> None:
        batch, hold = await fed(bus, 3)
        await work(bus, 3)
        await bus.batches.finalize(hold, "over")
        await bus.batches.collect(hold, OUTPUTS, job_ids=jobs_of(batch, range(3)), n_completed=3, n_failed=0)
        assert await bus.batches.finish(hold, RETENTION_S)
        names = {name.decode() async for name in behind.client.scan_iter(f"*{batch.id}*")}
        key = behind.keys.batch(batch.id)
        assert names == {key, f"{key}:segments"}
        for name in names:
            assert 0 < await behind.client.pttl(name) <= RETENTION_S * 1000
        for kind in ("job", "log"):
            assert not [name async for name in behind.client.scan_iter(f"{behind.keys.prefix(0)}{kind}:*")]

    async def test_the_list_lives_as_long_as_what_it_lists(self, bus: Bus, behind: Behind) -> None:
        hold = await held(bus, await made(bus))
        years = 5 * 365 * 86400.0
        assert await bus.batches.reject(hold, (), years)
        assert await behind.client.pttl(behind.keys.batches(0, "t")) >= years * 1000 - 60_000

    @pytest.mark.parametrize("how", ["made", "held", "planned", "fed", "ended", "finalizing", "cancelling"])
    async def test_nothing_of_a_batch_stays_should_nobody_ever_come(self, bus: Bus, how: str) -> None:
        """What stays is found at the end of every test; here there is nothing else."""
        batch = await made(bus)
        if how == "made":
            return
        hold = await held(bus, batch)
        if how == "held":
            return
        bad = Segment(number=0, n_error=1, error_bytes=1)
        await bus.batches.planned(hold, n_total=4, n_planned=3, segment=bad, model="m")
        if how == "planned":
            return
        await bus.batches.feed(hold, [*lines(batch, [0, 1]), refused(batch, 2)])
        if how == "fed":
            return
        await work(bus, 1)
        if how == "finalizing":
            await bus.batches.finalize(hold, "over")
        elif how == "cancelling":
            await bus.batches.cancel(batch.id)

    async def test_results_wait_as_long_as_their_batch_does(self, bus: Bus, behind: Behind) -> None:
        batch, _ = await fed(bus, 1)
        await work(bus, 1)
        job = behind.keys.job(jobs_of(batch, [0])[0])
        for key in (job, f"{behind.keys.batch(batch.id)}:ended", f"{behind.keys.batch(batch.id)}:flights"):
            assert await behind.client.pttl(key) == pytest.approx(
                await behind.client.pttl(behind.keys.batch(batch.id)), abs=1000
            )


class TestCancelling:
    async def test_it_is_cancelled_once(self, bus: Bus) -> None:
        batch, hold = await fed(bus, 2)
        both = await asyncio.gather(bus.batches.cancel(batch.id), bus.batches.cancel(batch.id))
        assert both[0] == both[1]
        assert both[0].status is BatchStatus.CANCELLING
        assert both[0].cancelling_at
        assert await bus.batches.finalize(hold, "over"), "it is no matter"
        assert await bus.batches.cancel(batch.id) == both[0]

    async def test_what_was_finalized_before_stays_so(self, bus: Bus) -> None:
        batch, hold = await fed(bus, 2)
        await bus.batches.finalize(hold, "over")
        assert (await bus.batches.cancel(batch.id)).status is BatchStatus.FINALIZING

    async def test_an_ended_one_stays_as_it_is(self, bus: Bus) -> None:
        batch = await made(bus)
        await bus.batches.reject(await held(bus, batch), (), RETENTION_S)
        failed = await record(bus, batch)
        assert await bus.batches.cancel(batch.id) == failed

    async def test_one_whose_time_was_over_before_expires(self, bus: Bus, behind: Behind) -> None:
        batch, hold = await fed(bus, 2)
        await behind.client.hset(behind.keys.batch(batch.id), "expires_ms", 1)
        assert (await bus.batches.cancel(batch.id)).status is BatchStatus.IN_PROGRESS
        assert await bus.batches.finalize(hold, "expired")
        assert (await bus.batches.cancel(batch.id)).status is BatchStatus.FINALIZING

    async def test_one_that_was_cancelled_before_does_not_expire(self, bus: Bus) -> None:
        batch, hold = await fed(bus, 2)
        await bus.batches.cancel(batch.id)
        assert await bus.batches.finalize(hold, "expired")
        assert (await record(bus, batch)).status is BatchStatus.CANCELLING

    async def test_its_lines_are_called_back(self, bus: Bus) -> None:
        batch, hold = await fed(bus, 150)
        await work(bus, 5)
        assert len(await bus.queue.claim("w1", "m", Wanted(0, 0, 3))) == 3
        await bus.batches.cancel(batch.id)
        await bus.batches.recall(await bus.batches.flights(batch.id))
        ended = [line.status for line in await bus.batches.ended(batch.id)]
        assert ended.count(JobStatus.SUCCEEDED) == 5
        assert ended.count(JobStatus.CANCELLED) == 142, "the three at work end when their worker says so"
        assert await bus.batches.finalize(hold, "cancelled")

    async def test_lines_whose_workers_died_need_no_other_worker_to_end(self, bus: Bus, behind: Behind) -> None:
        batch, _ = await fed(bus, 1)
        [claim] = await bus.queue.claim("w1", "m", Wanted(0, 0, 1))
        await bus.batches.cancel(batch.id)
        await bus.batches.recall([claim.job.id])
        assert await bus.batches.ended(batch.id) == []
        await behind.let_lease_run_out(claim.job.id)
        await bus.batches.recall([claim.job.id])
        assert [line.status for line in await bus.batches.ended(batch.id)] == [JobStatus.CANCELLED]


class TestRemains:
    async def test_what_is_left_of_an_ended_batch_is_found_until_it_is_cleared_away(
        self, wide: Bus, behind: Behind
    ) -> None:
        batch, hold = await fed(wide, 1)
        await work(wide, 1)
        await wide.batches.finalize(hold, "over")
        segment = Segment(number=0, n_output=1, output_bytes=9)
        await wide.batches.collect(hold, segment, job_ids=jobs_of(batch, [0]), n_completed=1, n_failed=0)
        await wide.batches.finish(hold, RETENTION_S)
        assert await wide.batches.overdue() == [], "somebody may still be at work on it, held up"
        remains = f"{behind.keys.prefix(partition_in(batch.id, Kind.BATCH))}remains"
        await behind.client.zadd(remains, {batch.id: 1})
        for _ in range(2):
            assert await wide.batches.overdue() == [(batch.id, True, False)]
        await wide.batches.forget(batch.id)
        assert await wide.batches.overdue() == []

    async def test_so_is_what_is_left_of_one_that_nobody_ended(self, bus: Bus, behind: Behind) -> None:
        batch = await made(bus)
        score = await behind.client.zscore(f"{behind.keys.prefix(0)}remains", batch.id)
        gone_in_ms = await behind.client.pttl(behind.keys.batch(batch.id))
        now = await behind.client.time()
        assert score == pytest.approx(now[0] * 1000 + gone_in_ms, abs=5000)
