"""Jobs from enqueue to their ending, and everything that is refused on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from typing import Any

import pytest

from shared.bus import Bus, Chunk, Lease, Verdict, Wanted, open_bus
from shared.errors import BusUnavailable, IdempotencyConflict, QueueFull, UnknownJob
from shared.events import Accepted, Failure, Finished, Progress
from shared.jobs import (
    VERSION,
    ApplyTemplate,
    Chat,
    Completion,
    Detokenize,
    Embedding,
    Image,
    Job,
    JobStatus,
    Lane,
    Media,
    Rerank,
    Tokenize,
    new_job_id,
    partition_of,
)
from shared.settings import BusSettings
from shared.webhooks import Secret, Webhook
from tests.shared.bus.conftest import ANY, Behind, a_job, claimed, eventually, keeper, other_lease, queued, tokens

SUCCEEDED = Finished(status="succeeded")
INPUT = Embedding(inputs=("a",))


class TestEnqueue:
    async def test_what_is_claimed_is_what_was_enqueued_without_its_body(self, wide: Bus) -> None:
        job = a_job(wide, body='{"prompt": "Hello"}', is_durable=True, metadata={"a": "é"}, tenant="t:{1}/é")
        assert await wide.queue.enqueue(job) == (job.id, True)
        claim = await claimed(wide)
        assert claim.job == job.model_copy(update={"body": None})
        assert (claim.attempt, claim.deaths, claim.lease.epoch) == (1, 0, 1)
        assert claim.deadline_at - claim.enqueued_at == pytest.approx(job.deadline_s)
        assert claim.enqueued_at <= claim.now

    async def test_a_webhook_stays_beside_its_job_and_its_secret_in_no_answer(self, bus: Bus, behind: Behind) -> None:
        webhook = Webhook(url="https://a.example", secret=Secret.model_validate({"value": "whsec_abc"}))
        job = await queued(bus, webhook=webhook)
        record = await bus.queue.record(job.id)
        assert record is not None
        assert record.webhook == webhook
        assert (await claimed(bus)).job.webhook is None
        assert "whsec_abc" not in record.to_json() + repr(record)
        fields = await behind.fields(job.id)
        assert [name for name, value in fields.items() if "whsec_abc" in value] == ["webhook"]
        assert await behind.field((await queued(bus)).id, "webhook") is None

    @pytest.mark.parametrize(
        "request_",
        [
            Completion(prompts=((1, "two", 3),)),
            Chat(messages=({"role": "user", "content": "hi"},), template_kwargs={"a": [1]}),
            Embedding(inputs=("a", (1, 2))),
            Tokenize(content=("a", 1)),
            Detokenize(tokens=(1, 2)),
            ApplyTemplate(chat=Chat(messages=({"role": "user", "content": "hi"},))),
        ],
        ids=lambda each: each.kind,
    )
    async def test_every_kind_of_request_arrives_whole(self, bus: Bus, request_: Any) -> None:
        await queued(bus, request=request_)
        assert (await claimed(bus)).job.request == request_

    async def test_a_job_enqueued_again_is_one_job(self, bus: Bus) -> None:
        job = a_job(bus)
        receipts = [await bus.queue.enqueue(job) for _ in range(3)]
        assert receipts == [(job.id, True)] * 3
        assert len(await bus.queue.claim("w1", "m", ANY)) == 1
        assert await bus.queue.enqueue(job) == (job.id, True)
        assert await bus.queue.claim("w1", "m", ANY) == []

    async def test_an_idempotency_key_makes_one_job(self, wide: Bus) -> None:
        def made() -> Job:
            return a_job(wide).model_copy(update={"id": wide.queue.new_job_id("key", "default"), "body": "{}"})

        receipts = await asyncio.gather(*(wide.queue.enqueue(made(), idempotency_key="key") for _ in range(8)))
        assert sum(receipt.is_new for receipt in receipts) == 1
        assert len({receipt.job_id for receipt in receipts}) == 1
        assert len(await wide.queue.claim("w1", "m", ANY)) == 1

    async def test_a_repeat_with_its_key_is_still_new(self, bus: Bus) -> None:
        job = a_job(bus)
        first = await bus.queue.enqueue(job, idempotency_key="key")
        assert await bus.queue.enqueue(job, idempotency_key="key") == first == (job.id, True)

    async def test_an_idempotency_key_with_another_body_conflicts(self, bus: Bus) -> None:
        await bus.queue.enqueue(a_job(bus, body='{"a": 1}'), idempotency_key="key")
        with pytest.raises(IdempotencyConflict):
            await bus.queue.enqueue(a_job(bus, body='{"a": 2}'), idempotency_key="key")
        assert len(await bus.queue.claim("w1", "m", ANY)) == 1

    async def test_a_key_does_not_mind_which_model_serves_its_body(self, bus: Bus) -> None:
        first = await bus.queue.enqueue(a_job(bus, body="{}", model="m"), idempotency_key="key")
        again = await bus.queue.enqueue(a_job(bus, body="{}", model="new"), idempotency_key="key")
        assert again == (first.job_id, False)

    async def test_tenants_do_not_share_idempotency_keys(self, bus: Bus) -> None:
        for tenant in ("a", "b"):
            assert (await bus.queue.enqueue(a_job(bus, tenant=tenant), idempotency_key="key")).is_new

    async def test_a_job_that_is_gone_sets_its_key_free(self, bus: Bus, behind: Behind) -> None:
        first = a_job(bus)
        await bus.queue.enqueue(first, idempotency_key="key")
        await behind.client.delete(behind.keys.job(first.id))
        assert (await bus.queue.enqueue(a_job(bus, body="other"), idempotency_key="key")).is_new

    async def test_a_key_needs_an_id_of_its_partition(self, bus_settings: BusSettings) -> None:
        async with open_bus(bus_settings.model_copy(update={"partitions": 64}), name="test") as bus:
            [partition] = {partition_of(bus.queue.new_job_id("key")) for _ in range(20)}
            job = a_job(bus).model_copy(update={"id": new_job_id((partition + 1) % 64)})
            with pytest.raises(ValueError, match="idempotency key"):
                await bus.queue.enqueue(job, idempotency_key="key")

    @pytest.mark.parametrize("limit", ["max_queued", "max_queued_per_tenant"])
    async def test_a_full_queue_says_when_to_come_back(self, bus_settings: BusSettings, limit: str) -> None:
        async with open_bus(bus_settings.model_copy(update={limit: 3}), name="test") as bus:
            jobs = [await queued(bus, lane=lane) for lane in (Lane.BULK, Lane.INTERACTIVE, Lane.BULK)]
            with pytest.raises(QueueFull) as full:
                await queued(bus)
            assert full.value.retry_after_s >= 1
            assert await bus.queue.enqueue(jobs[0]) == (jobs[0].id, True)
            if limit == "max_queued_per_tenant":
                await queued(bus, tenant="another")
            await bus.queue.claim("w1", "m", Wanted(0, 2, 2))
            await queued(bus)

    async def test_a_cancelled_job_makes_room_at_once(self, bus_settings: BusSettings) -> None:
        async with open_bus(bus_settings.model_copy(update={"max_queued": 1}), name="test") as bus:
            job = await queued(bus)
            await bus.queue.cancel(job.id)
            await queued(bus)

    async def test_everything_about_a_job_expires_from_the_start(self, bus: Bus, behind: Behind) -> None:
        job = a_job(bus, deadline_s=100)
        await bus.queue.enqueue(job, idempotency_key="key")
        await claimed(bus)
        names = (behind.keys.job(job.id), behind.keys.log(job.id), behind.keys.idempotency(0, "default", "key"))
        assert all([await behind.client.ttl(name) > 100 for name in names])


class TestClaim:
    async def test_never_more_than_wanted_over_lanes_and_tenants(self, wide: Bus) -> None:
        for i in range(40):
            await queued(wide, lane=(Lane.BULK, Lane.INTERACTIVE)[i % 2], tenant=f"t{i % 5}")
        claims = await wide.queue.claim("w1", "m", Wanted(2, 3, 7))
        lanes = Counter(claim.job.lane for claim in claims)
        assert lanes == {Lane.INTERACTIVE: 3, Lane.BULK: 4}
        assert await wide.queue.claim("w1", "m", Wanted(0, 0, 0)) == []
        assert len(await wide.queue.claim("w1", "m", Wanted(0, 0, 5))) == 5
        assert len(await wide.queue.claim("w1", "m", ANY, sweep=True)) == 28

    @pytest.mark.parametrize("lane", Lane)
    async def test_a_job_takes_as_many_places_as_it_has_sequences(self, bus: Bus, lane: Lane) -> None:
        async def claimed_widths(n_places: int, *, sweep: bool = False) -> list[int]:
            claims = await bus.queue.claim("w1", "m", Wanted(0, n_places, n_places), sweep=sweep)
            for claim in claims if not sweep else ():
                await bus.queue.release(claim.lease)
            return [claim.job.n_slots for claim in claims]

        for n in (3, 1, 4, 2, 1):
            await queued(bus, lane=lane, request=Completion(prompts=("a",), n=n))
        assert await claimed_widths(5) == [3, 1, 4]
        assert await claimed_widths(1) == [2]
        assert await claimed_widths(9) == [1]
        assert await claimed_widths(4, sweep=True) == [3, 1]
        assert await claimed_widths(1, sweep=True) == [4]

    async def test_interactive_work_goes_first(self, wide: Bus) -> None:
        for lane in (Lane.BULK, Lane.BULK, Lane.INTERACTIVE, Lane.INTERACTIVE):
            await queued(wide, lane=lane)
        [first] = await wide.queue.claim("w1", "m", Wanted(0, 1, 1))
        assert first.job.lane is Lane.INTERACTIVE

    async def test_what_needs_no_slot_is_handed_out_without_one(self, wide: Bus) -> None:
        quick = [await queued(wide, request=Tokenize(content="a"), tenant=f"t{i % 2}") for i in range(6)]
        await queued(wide)
        claims = await wide.queue.claim("w1", "m", Wanted(4, 0, 0))
        assert len(claims) == 4 and {claim.job.id for claim in claims} < {job.id for job in quick}
        assert len(await wide.queue.claim("w1", "m", ANY)) == 3
        for claim in claims:
            assert await wide.queue.finish(claim.lease, SUCCEEDED, 1)

    async def test_what_needs_no_slot_counts_into_the_depth(self, bus_settings: BusSettings) -> None:
        async with open_bus(bus_settings.model_copy(update={"max_queued": 2}), name="test") as bus:
            for _ in range(2):
                await queued(bus, request=Tokenize(content="a"))
            with pytest.raises(QueueFull):
                await queued(bus)

    async def test_inputs_take_no_slot_and_leave_none_to_others(self, wide: Bus) -> None:
        for request in (INPUT, Rerank(query="a", documents=("b",)), Completion(prompts=("a",))):
            for lane in Lane:
                await queued(wide, request=request, lane=lane)
        assert Counter(
            (claim.queue, claim.job.lane) for claim in await wide.queue.claim("w1", "m", Wanted(8, 8, 8))
        ) == {("interactive", Lane.INTERACTIVE): 1, ("bulk", Lane.BULK): 1}
        claims = await wide.queue.claim("w1", "m", Wanted(0, 0, 0, inputs=1, bulk_inputs=8))
        assert Counter(claim.queue for claim in claims) == {"inputs": 1, "bulk_inputs": 2}
        [last] = await wide.queue.claim("w1", "m", Wanted(0, 0, 0, inputs=8, bulk_inputs=8))
        assert await wide.queue.release(last.lease)
        [last] = await wide.queue.claim("w2", "m", Wanted(0, 0, 0, inputs=8), sweep=True)
        for claim in (*claims, last):
            assert await wide.queue.finish(claim.lease, SUCCEEDED, 1)

    async def test_inputs_of_people_are_handed_out_before_those_of_bulk(self, wide: Bus) -> None:
        jobs = [await queued(wide, request=INPUT, lane=lane) for lane in (Lane.BULK, Lane.INTERACTIVE) * 2]
        claims = await wide.queue.claim("w1", "m", ANY)
        assert [claim.job.lane for claim in claims] == [Lane.INTERACTIVE] * 2 + [Lane.BULK] * 2
        assert {claim.job.id for claim in claims} == {job.id for job in jobs}

    @pytest.mark.parametrize("lane", Lane)
    async def test_many_inputs_take_many_places_and_long_ones_several(self, bus: Bus, lane: Lane) -> None:
        texts = (("a",) * 3, ("a" * 700,), ((1,) * 100,), ("a",))
        for inputs in texts:
            await queued(bus, request=Embedding(inputs=inputs), lane=lane)
        wanted = Wanted(0, 0, 0, inputs=7, bulk_inputs=7)
        assert [claim.job.n_places for claim in await bus.queue.claim("w1", "m", wanted)] == [3, 3, 2]
        assert len(await bus.queue.claim("w1", "m", wanted)) == 1

    async def test_tenants_take_turns_with_their_inputs(self, bus: Bus) -> None:
        for tenant, n_jobs in (("hog", 30), ("b", 3)):
            for _ in range(n_jobs):
                await queued(bus, tenant=tenant, request=INPUT)
        claims = await bus.queue.claim("w1", "m", Wanted(0, 0, 0, inputs=6))
        assert Counter(claim.job.tenant for claim in claims) == {"hog": 3, "b": 3}

    @pytest.mark.parametrize("lane", Lane)
    async def test_inputs_count_into_the_depth(self, bus_settings: BusSettings, lane: Lane) -> None:
        for limit in ("max_queued", "max_queued_per_tenant"):
            async with open_bus(bus_settings.model_copy(update={limit: 2}), name="test") as bus:
                jobs = [await queued(bus, request=INPUT, lane=lane, tenant=limit, model=limit) for _ in range(2)]
                with pytest.raises(QueueFull):
                    await queued(bus, tenant=limit, model=limit)
                await bus.queue.cancel(jobs[0].id)
                await queued(bus, tenant=limit, model=limit)

    @pytest.mark.parametrize("lane", Lane)
    async def test_inputs_that_an_older_version_put_into_a_lane_are_of_that_lane(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch, lane: Lane
    ) -> None:
        with monkeypatch.context() as older:
            older.setattr(Job, "queue", property(lambda job: job.lane.value))
            older.setattr(Job, "n_places", property(lambda job: job.n_slots))
            await queued(bus, request=Embedding(inputs=("a", "b")), lane=lane)
            await queued(bus, request=INPUT, lane=lane)
        assert await bus.queue.claim("w1", "m", Wanted(0, 0, 0, inputs=8, bulk_inputs=8), sweep=True) == []
        [claim] = await bus.queue.claim("w1", "m", Wanted(0, 1, 1))
        assert (claim.queue, claim.job.has_inputs) == (lane.value, True)

    async def test_only_the_model_asked_for(self, bus: Bus) -> None:
        await queued(bus, model="other:model")
        assert await bus.queue.claim("w1", "m", ANY, sweep=True) == []
        assert len(await bus.queue.claim("w1", "other:model", ANY)) == 1

    async def test_jobs_of_a_tenant_come_in_their_order(self, bus: Bus) -> None:
        jobs = [await queued(bus) for _ in range(20)]
        claims = [each for _ in range(4) for each in await bus.queue.claim("w1", "m", Wanted(0, 5, 0))]
        assert [claim.job.id for claim in claims] == [job.id for job in jobs]

    async def test_workers_at_once_never_get_the_same_job(self, wide: Bus) -> None:
        jobs = {(await queued(wide, tenant=f"t{i % 3}")).id for i in range(200)}

        async def work(name: str) -> list[str]:
            got: list[str] = []
            while claims := await wide.queue.claim(name, "m", Wanted(0, 3, 3), sweep=True):
                got += [claim.job.id for claim in claims]
            return got

        got = [job_id for found in await asyncio.gather(*map(work, "abcdef")) for job_id in found]
        assert len(got) == len(set(got)) == 200
        assert set(got) == jobs

    async def test_tenants_take_turns(self, bus: Bus) -> None:
        for tenant, n_jobs in (("hog", 30), ("b", 3), ("c", 3)):
            for _ in range(n_jobs):
                await queued(bus, tenant=tenant)
        claims = await bus.queue.claim("w1", "m", Wanted(0, 9, 0))
        assert Counter(claim.job.tenant for claim in claims) == {"hog": 3, "b": 3, "c": 3}

    @pytest.mark.parametrize(
        "dear",
        [Completion(prompts=("x" * 4000,), n_predict=1000), Completion(prompts=("x", "y"), n=64, n_predict=1000)],
    )
    async def test_turns_are_counted_by_what_is_asked_for(self, bus: Bus, dear: Completion) -> None:
        for _ in range(20):
            await queued(bus, tenant="dear", request=dear)
            await queued(bus, tenant="cheap", request=Completion(prompts=("x",), n_predict=1))
        claims = await bus.queue.claim("w1", "m", Wanted(0, 15 + dear.n_sequences, 0))
        counts = Counter(claim.job.tenant for claim in claims)
        assert counts["cheap"] > 4 * counts["dear"] > 0

    async def test_an_image_counts_alike_however_large_its_file_is(self, bus: Bus) -> None:
        for n_bytes, tenant in ((100, "small"), (100_000, "large")):
            media = Media(mark="stands-for-it", images=(Image(data="A" * n_bytes),))
            for _ in range(8):
                await queued(bus, tenant=tenant, request=Completion(prompts=("stands-for-it",), media=media))
        claims = await bus.queue.claim("w1", "m", Wanted(0, 8, 0))
        assert Counter(claim.job.tenant for claim in claims) == {"small": 4, "large": 4}

    async def test_who_comes_back_has_saved_up_no_turns(self, bus: Bus) -> None:
        await queued(bus, tenant="guest")
        await claimed(bus)  # stays in the lane while its job runs
        for _ in range(30):
            await queued(bus, tenant="host")
        await bus.queue.claim("w1", "m", Wanted(0, 10, 0))
        for _ in range(10):
            await queued(bus, tenant="guest")
        claims = await bus.queue.claim("w1", "m", Wanted(0, 10, 0))
        assert Counter(claim.job.tenant for claim in claims)["host"] >= 4

    async def test_own_work_is_for_one_worker_and_goes_with_it(self, bus: Bus, behind: Behind) -> None:
        job = a_job(bus, deadline_s=50)
        await bus.queue.enqueue(job, worker="w/2")
        assert await bus.queue.claim("w1", "m", ANY, sweep=True) == []
        assert await bus.queue.claim("w/2", "m", Wanted(0, 5, 5)) == []
        assert await behind.client.ttl(behind.keys.own(0, "w/2")) > 0
        [claim] = await bus.queue.claim("w/2", "m", Wanted(0, 0, 0, own=1))
        assert claim.job == job
        assert await bus.queue.finish(claim.lease, SUCCEEDED, 1)

    async def test_a_cancelled_claim_gives_back_what_it_got(self, wide: Bus) -> None:
        jobs = {(await queued(wide)).id for _ in range(8)}
        for n_turns in range(8):
            claiming = asyncio.create_task(wide.queue.claim("w1", "m", ANY, sweep=True))
            for _ in range(n_turns):
                await asyncio.sleep(0)
            claiming.cancel()
            await asyncio.wait([claiming])
        claims = await wide.queue.claim("w2", "m", ANY, sweep=True)
        assert {claim.job.id for claim in claims} == jobs
        assert {(claim.attempt, claim.deaths) for claim in claims} == {(1, 0)}

    async def test_expired_and_cancelled_jobs_end_instead_of_being_handed_out(self, bus: Bus) -> None:
        late = await queued(bus, deadline_s=0.0001)
        unwanted = await queued(bus)
        await bus.queue.cancel(unwanted.id)
        good = await queued(bus)
        assert (await claimed(bus)).job.id == good.id
        assert await status_of(bus, late.id) is JobStatus.EXPIRED
        assert await status_of(bus, unwanted.id) is JobStatus.CANCELLED

    async def test_entries_that_mean_nothing_are_dropped(self, bus: Bus, behind: Behind) -> None:
        lane = behind.keys.lane(0, "m", "interactive", "default")
        gone = await queued(bus)
        await behind.client.xadd(lane, {"job": "job_0_never"})
        await behind.client.xadd(lane, {"something": "else"})
        await behind.client.delete(behind.keys.job(gone.id))
        good = await queued(bus)
        assert (await claimed(bus)).job.id == good.id
        assert await behind.client.xlen(lane) == 1

    @pytest.mark.parametrize("ends_them", ["claim", "reap"])
    async def test_many_expired_jobs_end_in_many_short_calls(self, bus: Bus, behind: Behind, ends_them: str) -> None:
        jobs = [await queued(bus, deadline_s=0.0001) for _ in range(300)]
        await behind.client.config_resetstat()
        if ends_them == "claim":
            assert await bus.queue.claim("w1", "m", ANY) == []
        else:
            assert await bus.queue.reap() == 300
        calls = (await behind.client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        assert calls >= 3
        assert await status_of(bus, jobs[-1].id) is JobStatus.EXPIRED

    async def test_many_dead_entries_do_not_hide_a_live_one(self, bus: Bus) -> None:
        for _ in range(1500):
            await queued(bus, deadline_s=0.0001)
        good = await queued(bus)
        assert (await claimed(bus)).job.id == good.id

    @pytest.mark.parametrize("request_", ['{"id": "x"}', "{", "", None])
    async def test_a_request_that_cannot_be_read_goes_to_the_dead(
        self, bus: Bus, behind: Behind, request_: str | None
    ) -> None:
        bad, good = await queued(bus, is_durable=True), await queued(bus)
        if request_ is None:
            await behind.client.hdel(behind.keys.job(bad.id), "job")
        else:
            await behind.client.hset(behind.keys.job(bad.id), "job", request_)
        assert (await claimed(bus)).job.id == good.id
        record = await bus.queue.record(bad.id)
        assert record and record.failure and record.failure.code == "unreadable"
        [(_, row)] = await behind.client.xrange(f"{behind.keys.prefix(0)}dead")
        assert row[b"job"].decode() == bad.id and row[b"why"]
        assert await behind.pending(bad.id) == 1  # the good one's
        assert len(await bus.outbox.read()) == 1

    async def test_a_job_of_a_newer_program_waits_for_a_newer_worker(
        self, bus: Bus, behind: Behind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = await queued(bus)
        await behind.client.hset(behind.keys.job(job.id), "version", VERSION + 1)
        for sweep in (False, True, True):
            assert await bus.queue.claim("old", "m", ANY, sweep=sweep) == []
        assert await status_of(bus, job.id) is JobStatus.QUEUED
        monkeypatch.setattr("shared.bus.claims.VERSION", VERSION + 1)
        claim = await claimed(bus, "new", sweep=True)
        assert (claim.job.id, claim.attempt, claim.deaths) == (job.id, 1, 0)


async def status_of(bus: Bus, job_id: str) -> JobStatus:
    record = await bus.queue.record(job_id)
    assert record
    return record.status


class TestLostLeases:
    async def test_a_silent_workers_job_is_taken_over_and_its_numbers_run_on(self, bus: Bus, behind: Behind) -> None:
        await queued(bus)
        first = await claimed(bus, "w1")
        await bus.queue.append([Chunk(first.lease, 1, tokens("a", "b", "c"))])
        assert await bus.queue.claim("w2", "m", ANY, sweep=True) == []
        await behind.let_lease_run_out(first.job.id)
        assert await bus.queue.claim("w2", "m", ANY) == []
        second = await claimed(bus, "w2", sweep=True)
        assert (second.job, second.attempt, second.deaths) == (first.job, 2, 1)
        assert second.lease.epoch == 2
        logged = await bus.log.read(first.job.id)
        assert [number for number, _ in logged] == [1, 2, 3]
        assert await bus.queue.append([Chunk(second.lease, 4, tokens("d"))]) == [Verdict.OK]
        assert await bus.queue.finish(second.lease, SUCCEEDED, 5)
        ids = [entry for entry, _ in await behind.log(first.job.id)]
        assert ids == ["1-0", "1-1", "2-0", "2-4", "2-5"]

    async def test_a_lease_runs_out_by_itself(self, bus_settings: BusSettings) -> None:
        async with open_bus(bus_settings.model_copy(update={"lease_s": 0.2}), name="test") as bus:
            await queued(bus)
            await claimed(bus, "w1")
            [second] = await eventually(lambda: bus.queue.claim("w2", "m", ANY, sweep=True), within_s=2)
            assert (second.attempt, second.deaths) == (2, 1)

    @pytest.mark.parametrize("what", ["append", "finish", "release"])
    @pytest.mark.parametrize("why", ["taken over", "other nonce", "released", "ended", "gone"])
    async def test_a_stale_lease_can_do_nothing(self, bus: Bus, behind: Behind, what: str, why: str) -> None:
        job = await queued(bus)
        stale = (await claimed(bus)).lease
        match why:
            case "taken over":
                await behind.let_lease_run_out(job.id)
                await claimed(bus, "w2", sweep=True)
            case "other nonce":
                stale = other_lease(stale)
            case "released":
                await bus.queue.release(stale)
                stale = stale if what != "release" else other_lease(stale)
            case "ended":
                await behind.let_lease_run_out(job.id)
                await behind.let_deadline_pass(job.id)
                assert await bus.queue.reap() == 1
            case "gone":
                await behind.client.delete(behind.keys.job(job.id), behind.keys.log(job.id))
        before = await behind.fields(job.id), await behind.log(job.id)
        match what:
            case "append":
                chunk = Chunk(stale, 1, tokens("x"), Accepted(prompt_tokens=1, n_ctx=2))
                assert await bus.queue.append([chunk]) == [Verdict.LOST]
            case "finish":
                assert not await bus.queue.finish(stale, SUCCEEDED, 1)
            case "release":
                assert not await bus.queue.release(stale)
        assert (await behind.fields(job.id), await behind.log(job.id)) == before

    async def test_the_third_death_ends_a_job_among_the_dead(self, bus: Bus, behind: Behind) -> None:
        job = await queued(bus, is_durable=True)
        for deaths in range(3):
            claim = await claimed(bus, f"w{deaths}", sweep=True)
            assert (claim.attempt, claim.deaths) == (deaths + 1, deaths)
            await behind.let_lease_run_out(job.id)
        assert await bus.queue.claim("w9", "m", ANY, sweep=True) == []
        record = await bus.queue.record(job.id)
        assert record and record.status is JobStatus.FAILED
        assert record.failure and record.failure.code == "worker_died"
        [(_, row)] = await behind.client.xrange(f"{behind.keys.prefix(0)}dead")
        assert (row[b"job"].decode(), row[b"worker"]) == (job.id, b"w2")
        assert await behind.field(job.id, "job")  # kept, to see what killed them
        assert await behind.pending(job.id) == 0

    async def test_the_lapse_of_a_living_worker_is_no_death(
        self, bus: Bus, bus_settings: BusSettings, behind: Behind
    ) -> None:
        job = await queued(bus)
        with keeper(bus_settings, "w1"):
            for attempt in range(1, 6):
                claim = await claimed(bus, "w1", sweep=True)
                assert (claim.attempt, claim.deaths) == (attempt, 0)
                await eventually(lambda: behind.heard("w1"))
                await behind.let_lease_run_out(job.id)

    async def test_a_server_that_was_away_takes_nobodys_silence_for_death(
        self, bus_settings: BusSettings, behind: Behind
    ) -> None:
        settings = bus_settings.model_copy(update={"lease_s": 1.0})
        async with open_bus(settings, name="test") as bus:
            job = await queued(bus)
            with keeper(settings, "w1"), keeper(settings, "w2"):
                first = await claimed(bus, "w1")
                await eventually(lambda: behind.heard("w2"))
            # Both were cut off, and only the second is heard again at once.
            await asyncio.sleep(settings.lease_s)
            with keeper(settings, "w2"):
                await behind.let_lease_run_out(job.id)
                assert await bus.queue.claim("w2", "m", ANY, sweep=True) == []
                with keeper(settings, "w1"):
                    again = await eventually(lambda: bus.queue.claim("w2", "m", ANY, sweep=True))
            assert [(claim.attempt, claim.deaths) for claim in again] == [(2, 0)]
            with keeper(settings, "w3"):
                await asyncio.sleep(settings.lease_s)
                await behind.let_lease_run_out(job.id)
                [last] = await eventually(lambda: bus.queue.claim("w3", "m", ANY, sweep=True))
            assert (last.attempt, last.deaths) == (3, 1)
            assert first.lease.token != last.lease.token

    async def test_what_one_worker_died_with_goes_on_all_at_once(self, bus: Bus, behind: Behind) -> None:
        jobs = await self.dead_with(bus, behind, n_jobs=6, n_deaths=1)
        claims = await bus.queue.claim("w9", "m", ANY._replace(suspects=0), sweep=True)
        assert {claim.job.id: claim.deaths for claim in claims} == dict.fromkeys(jobs, 1)

    async def test_of_what_two_workers_died_with_one_goes_to_a_worker(self, wide: Bus, behind: Behind) -> None:
        jobs = await self.dead_with(wide, behind, n_jobs=6, n_deaths=2)
        fresh = [await queued(wide) for _ in range(3)]
        claims = await wide.queue.claim("w2", "m", ANY, sweep=True)
        [suspect] = [claim for claim in claims if claim.is_suspect]
        assert (suspect.deaths, suspect.attempt) == (2, 3)
        assert {claim.job.id for claim in claims if not claim.is_suspect} == {job.id for job in fresh}
        assert await wide.queue.claim("w2", "m", ANY._replace(suspects=0), sweep=True) == []
        got = {suspect.job.id}
        for worker in ("w3", "w4", "w5", "w6", "w2"):
            [claim] = await wide.queue.claim(worker, "m", ANY, sweep=True)
            assert (claim.deaths, claim.attempt) == (2, 3)  # set aside meanwhile, and not judged again
            got.add(claim.job.id)
        assert got == set(jobs)

    async def test_a_suspect_set_aside_is_as_good_as_queued(self, bus: Bus, behind: Behind) -> None:
        jobs = await self.dead_with(bus, behind, n_jobs=2, n_deaths=2)
        [first] = await bus.queue.claim("w9", "m", ANY, sweep=True)
        [aside] = set(jobs) - {first.job.id}
        record = await bus.queue.record(aside)
        assert record and (record.status, record.position, record.attempts) == (JobStatus.QUEUED, 1, 2)
        assert (await bus.queue.cancel(aside)).status is JobStatus.CANCELLED
        assert await behind.pending(first.job.id) == 1

    async def dead_with(self, bus: Bus, behind: Behind, n_jobs: int, n_deaths: int) -> list[str]:
        """Jobs that so many workers have fallen silent with; the last one has not been missed yet."""
        jobs = [(await queued(bus, lane=(Lane.BULK, Lane.INTERACTIVE)[i % 2])).id for i in range(n_jobs)]
        for worker in range(n_deaths):
            assert len(await bus.queue.claim(f"dead{worker}", "m", ANY, sweep=True)) == n_jobs
            for job_id in jobs:
                await behind.let_lease_run_out(job_id)
        return jobs

    async def test_a_cancelled_or_late_job_of_a_dead_worker_ends_at_the_sweep(self, bus: Bus, behind: Behind) -> None:
        unwanted, late = await queued(bus), await queued(bus)
        assert len(await bus.queue.claim("w1", "m", ANY)) == 2
        await bus.queue.cancel(unwanted.id)
        await behind.let_deadline_pass(late.id)
        for job in (unwanted, late):
            await behind.let_lease_run_out(job.id)
        assert await bus.queue.claim("w2", "m", ANY, sweep=True) == []
        assert await status_of(bus, unwanted.id) is JobStatus.CANCELLED
        assert await status_of(bus, late.id) is JobStatus.EXPIRED

    async def test_lost_work_goes_before_new_work_within_the_numbers(self, bus: Bus, behind: Behind) -> None:
        old = {(await queued(bus)).id for _ in range(3)}
        await bus.queue.claim("w1", "m", ANY)
        for job_id in old:
            await behind.let_lease_run_out(job_id)
        for _ in range(3):
            await queued(bus)
        claims = await bus.queue.claim("w2", "m", Wanted(0, 4, 4), sweep=True)
        assert len(claims) == 4
        assert {claim.job.id for claim in claims[:3]} == old

    async def test_a_trimmed_entry_is_dropped(self, bus: Bus, behind: Behind) -> None:
        job = await queued(bus)
        await claimed(bus)
        await behind.let_lease_run_out(job.id)
        await behind.client.xtrim(behind.keys.lane(0, "m", "interactive", "default"), maxlen=0, approximate=False)
        assert await bus.queue.claim("w2", "m", ANY, sweep=True) == []
        assert await behind.pending(job.id) == 0


class TestAppend:
    async def test_chunks_of_many_jobs_keep_their_order(self, wide: Bus) -> None:
        for _ in range(6):
            await queued(wide)
        leases = [claim.lease for claim in await wide.queue.claim("w1", "m", ANY)]
        chunks = [Chunk(lease, number, tokens(f"{number}")) for number in range(1, 21) for lease in leases]
        assert set(await wide.queue.append(chunks)) == {Verdict.OK}
        for lease in leases:
            logged = await wide.log.read(lease.job_id)
            assert [(number, int(event.text)) for number, event in logged] == [(n, n) for n in range(1, 21)]

    async def test_a_chunk_said_again_is_in_the_log_once(self, bus: Bus) -> None:
        await queued(bus)
        lease = (await claimed(bus)).lease
        chunk = Chunk(lease, 1, tokens("a", "b"))
        assert await bus.queue.append([chunk, chunk]) == [Verdict.OK, Verdict.OK]
        assert await bus.queue.append([chunk]) == [Verdict.OK]
        assert [event.text for _, event in await bus.log.read(lease.job_id)] == ["a", "b"]

    async def test_a_gap_is_never_written(self, bus: Bus) -> None:
        await queued(bus)
        lease = (await claimed(bus)).lease
        assert await bus.queue.append([Chunk(lease, 2, tokens("b"))]) == [Verdict.LOST]
        assert not await bus.queue.finish(lease, SUCCEEDED, 3)
        assert await bus.log.read(lease.job_id) == []

    async def test_a_chunk_that_is_half_written_is_refused_whole(self, bus: Bus) -> None:
        job = await queued(bus)
        lease = (await claimed(bus)).lease
        await bus.queue.append([Chunk(lease, 1, tokens("a", "b"))])
        assert await bus.queue.append([Chunk(lease, 2, tokens("b", "c"))]) == [Verdict.LOST]
        assert [number for number, _ in await bus.log.read(job.id)] == [1, 2]

    async def test_the_verdict_carries_a_cancel(self, bus: Bus) -> None:
        job = await queued(bus)
        lease = (await claimed(bus)).lease
        await bus.queue.cancel(job.id)
        assert await bus.queue.append([Chunk(lease, 1, tokens("a"))]) == [Verdict.CANCEL]
        assert len(await bus.log.read(job.id)) == 1

    async def test_no_chunks_are_no_round_trip(self, bus: Bus) -> None:
        assert await bus.queue.append([]) == []

    async def test_chunks_survive_a_server_that_lost_its_scripts(self, bus: Bus, behind: Behind) -> None:
        await queued(bus)
        lease = (await claimed(bus)).lease
        for number in range(1, 5):
            await behind.client.script_flush()
            assert await bus.queue.append([Chunk(lease, number, tokens("a"))]) == [Verdict.OK]
        assert len(await bus.log.read(lease.job_id)) == 4


class TestFinish:
    async def test_a_finished_job_leaves_only_its_record_and_log(self, bus: Bus, behind: Behind) -> None:
        job = await queued(bus)
        lease = (await claimed(bus)).lease
        finished = Finished(status="failed", failure=Failure(code="engine_failed", message="No."), worker="w1")
        assert await bus.queue.finish(lease, finished, 1)
        record = await bus.queue.record(job.id)
        assert record and record.finished == finished
        assert record.created_at <= (record.started_at or 0) <= (record.ended_at or 0)
        lane = behind.keys.lane(0, "m", "interactive", "default")
        assert (await behind.client.xlen(lane), await behind.pending(job.id)) == (0, 0)
        assert await behind.client.zcard(behind.keys.due(0)) == 0
        assert await behind.log(job.id) == [("1-0", {"attempt": "1"}), ("1-1", {"end": "failed"})]

    async def test_finishing_again_changes_nothing(self, bus: Bus, behind: Behind) -> None:
        job = await queued(bus, is_durable=True)
        lease = (await claimed(bus)).lease
        assert await bus.queue.finish(lease, SUCCEEDED, 1)
        before = await behind.fields(job.id)
        assert await bus.queue.finish(lease, Finished(status="failed"), 1)
        assert await behind.fields(job.id) == before
        assert len(await behind.log(job.id)) == 2
        assert await behind.client.xlen(f"{behind.keys.prefix(0)}outbox") == 1

    @pytest.mark.parametrize("is_durable", [True, False])
    async def test_only_a_durable_job_is_told_of_and_kept_long(
        self, bus: Bus, behind: Behind, bus_settings: BusSettings, is_durable: bool
    ) -> None:
        job = await queued(bus, is_durable=is_durable, deadline_s=1e6)
        await bus.queue.finish((await claimed(bus)).lease, SUCCEEDED, 1)
        rows = await behind.client.xrange(f"{behind.keys.prefix(0)}outbox")
        assert [row[b"job"].decode() for _, row in rows] == [job.id] * is_durable
        kept_s = await behind.client.ttl(behind.keys.job(job.id))
        assert kept_s <= (bus_settings.retention_s if is_durable else bus_settings.log_retention_s)
        assert 0 < await behind.client.ttl(behind.keys.log(job.id)) <= bus_settings.log_retention_s


class TestRelease:
    async def test_a_released_job_is_claimed_at_once_and_no_attempt_is_burnt(self, wide: Bus) -> None:
        await queued(wide)
        first = await claimed(wide, "w1")
        await wide.queue.append([Chunk(first.lease, 1, tokens("a"))])
        assert await wide.queue.release(first.lease)
        assert await status_of(wide, first.job.id) is JobStatus.QUEUED
        second = await claimed(wide, "w2", sweep=True)
        assert (second.attempt, second.deaths, second.lease.epoch) == (1, 0, 2)
        assert await wide.queue.append([Chunk(second.lease, 2, tokens("b"))]) == [Verdict.OK]

    async def test_releasing_again_changes_nothing(self, bus: Bus, behind: Behind) -> None:
        job = await queued(bus)
        lease = (await claimed(bus)).lease
        assert await bus.queue.release(lease)
        before = await behind.fields(job.id)
        assert await bus.queue.release(lease)
        assert await behind.fields(job.id) == before

    async def test_a_released_job_that_was_cancelled_ends(self, wide: Bus, behind: Behind) -> None:
        job = await queued(wide)
        lease = (await claimed(wide)).lease
        await wide.queue.cancel(job.id)
        assert [await wide.queue.release(lease) for _ in range(2)] == [True, True]
        record = await wide.queue.record(job.id)
        assert record is not None
        assert (record.status, record.failure and record.failure.code) == (JobStatus.CANCELLED, "cancelled")
        assert [fields for _, fields in await behind.log(job.id)][1:] == [{"end": "cancelled"}]
        assert await wide.queue.claim("w2", "m", ANY, sweep=True) == []

    async def test_a_job_can_be_released_for_ever(self, bus: Bus) -> None:
        await queued(bus)
        for _ in range(10):
            claim = await claimed(bus, sweep=True)
            assert (claim.attempt, claim.deaths) == (1, 0)
            assert await bus.queue.release(claim.lease)


class TestCancel:
    async def test_a_queued_job_ends_now_and_is_never_handed_out(self, wide: Bus) -> None:
        job = await queued(wide, is_durable=True)
        record = await wide.queue.cancel(job.id)
        assert record.status is JobStatus.CANCELLED
        assert record.failure and record.failure.code == "cancelled"
        assert await wide.queue.claim("w1", "m", ANY, sweep=True) == []

    async def test_a_released_job_ends_after_what_it_said(self, bus: Bus, behind: Behind) -> None:
        job = await queued(bus)
        lease = (await claimed(bus)).lease
        await bus.queue.append([Chunk(lease, 1, tokens("a", "b"))])
        await bus.queue.release(lease)
        assert (await bus.queue.cancel(job.id)).status is JobStatus.CANCELLED
        assert (await behind.log(job.id))[-1] == ("1-3", {"end": "cancelled"})
        assert await bus.queue.claim("w2", "m", ANY, sweep=True) == []

    async def test_a_running_job_is_its_workers_to_end(self, bus: Bus) -> None:
        job = await queued(bus)
        lease = (await claimed(bus, "w1")).lease
        async with aclosing(bus.queue.wakes("w1", "m")) as wakes:
            assert (await anext(wakes)).kind == "resync"
            assert (await bus.queue.cancel(job.id)).status is JobStatus.RUNNING
            assert await asyncio.wait_for(anext(wakes), 5) == ("cancel", job.id)
        assert await bus.queue.finish(lease, Finished(status="cancelled"), 1)
        assert await status_of(bus, job.id) is JobStatus.CANCELLED

    async def test_a_cancel_that_meets_a_claim_ends_the_job_once(self, bus: Bus, behind: Behind) -> None:
        for _ in range(30):
            job = await queued(bus)
            _, claims = await asyncio.gather(bus.queue.cancel(job.id), bus.queue.claim("w1", "m", ANY))
            for claim in claims:
                assert await bus.queue.append([Chunk(claim.lease, 1, tokens("a"))]) == [Verdict.CANCEL]
                assert await bus.queue.finish(claim.lease, Finished(status="cancelled"), 2)
            first, second = [await bus.queue.cancel(job.id) for _ in range(2)]
            assert first == second and first.status is JobStatus.CANCELLED
            assert sum("end" in fields for _, fields in await behind.log(job.id)) == 1

    async def test_an_ended_job_keeps_the_end_that_it_had(self, bus: Bus) -> None:
        job = await queued(bus)
        await bus.queue.finish((await claimed(bus)).lease, SUCCEEDED, 1)
        for _ in range(2):
            assert (await bus.queue.cancel(job.id)).finished == SUCCEEDED

    @pytest.mark.parametrize("job_id", ["job_0_unknown", "job_7777_beef", "nonsense", "", "job_0_é", "job_x_1"])
    async def test_an_unknown_job_is_unknown(self, bus: Bus, job_id: str) -> None:
        assert await bus.queue.record(job_id) is None
        with pytest.raises(UnknownJob):
            await bus.queue.cancel(job_id)


class TestForget:
    async def test_what_has_ended_goes_with_its_log_its_place_and_its_key(self, bus: Bus, behind: Behind) -> None:
        job = a_job(bus, is_durable=True)
        await bus.queue.enqueue(job, idempotency_key="key")
        lease = (await claimed(bus)).lease
        await bus.queue.append([Chunk(lease, 1, tokens("a"))])
        assert not await bus.queue.forget(job.id, job.tenant)
        assert await bus.queue.finish(lease, Finished(status="succeeded"), 2)
        assert await bus.queue.forget(job.id, job.tenant)
        assert await bus.queue.record(job.id) is None
        assert not await behind.client.exists(behind.keys.job(job.id), behind.keys.log(job.id))
        assert (await bus.queue.page(job.tenant)).records == []
        assert (await bus.queue.enqueue(a_job(bus, is_durable=True), idempotency_key="key")).is_new

    async def test_what_waits_or_runs_stays_and_what_is_gone_is_gone(self, bus: Bus) -> None:
        job = await queued(bus)
        assert not await bus.queue.forget(job.id, job.tenant)
        assert [claim.job.id for claim in await bus.queue.claim("w1", "m", ANY)] == [job.id]
        assert await bus.queue.forget("job_0_0", "default")


class TestReap:
    async def test_overdue_jobs_end_unless_somebody_holds_them(self, wide: Bus, behind: Behind) -> None:
        waiting = await queued(wide, is_durable=True, deadline_s=0.0001)
        held, lost = await queued(wide, tenant="a"), await queued(wide, tenant="b")
        assert len(await wide.queue.claim("w1", "m", Wanted(0, 0, 0))) == 0
        claims = {claim.job.id: claim for claim in await wide.queue.claim("w1", "m", ANY)}
        assert set(claims) == {held.id, lost.id}
        for job in (held, lost):
            await behind.let_deadline_pass(job.id)
        await behind.let_lease_run_out(lost.id)
        assert await wide.queue.reap() == 1
        assert await status_of(wide, waiting.id) is JobStatus.EXPIRED
        assert await status_of(wide, lost.id) is JobStatus.EXPIRED
        assert await status_of(wide, held.id) is JobStatus.RUNNING
        assert not await wide.queue.finish(claims[lost.id].lease, SUCCEEDED, 1)
        assert await wide.queue.finish(claims[held.id].lease, Finished(status="expired"), 1)

    async def test_a_waiting_job_ends_at_its_deadline_without_any_worker(self, bus: Bus) -> None:
        jobs = [await queued(bus, deadline_s=0.0001) for _ in range(700)]
        assert await bus.queue.reap() == 700
        record = await bus.queue.record(jobs[0].id)
        assert record and record.failure and record.failure.code == "expired"

    async def test_empty_lanes_go_and_used_ones_stay(self, bus: Bus, behind: Behind) -> None:
        for tenant in ("gone", "cancelled", "stays", "runs"):
            await queued(bus, tenant=tenant)
        for claim in await bus.queue.claim("w1", "m", Wanted(0, 4, 0)):
            if claim.job.tenant != "runs":
                await bus.queue.finish(claim.lease, SUCCEEDED, 1)
        for tenant in ("cancelled", "stays"):
            job = await queued(bus, tenant=tenant)
            if tenant == "cancelled":
                await bus.queue.cancel(job.id)
        await bus.queue.reap()
        turn = await behind.client.zrange(behind.keys.turn(0, "m", "interactive"), 0, -1)
        assert set(turn) == {b"stays", b"runs"}
        lanes = await behind.client.keys(f"{behind.keys.prefix(0)}q:m:interactive:*")
        assert len(lanes) == 2
        assert (await claimed(bus)).job.tenant == "stays"

    async def test_an_idle_queue_leaves_next_to_nothing(self, bus: Bus, behind: Behind) -> None:
        await queued(bus)
        await bus.queue.finish((await claimed(bus)).lease, SUCCEEDED, 1)
        await bus.queue.reap()
        prefix = behind.keys.prefix(0)
        left = {key.decode().removeprefix(prefix) for key in await behind.client.keys(f"{behind.keys.namespace}:*")}
        assert {name for name in left if not name.startswith(("job:", "log:"))} == {"load:m"}

    async def test_a_consumer_with_work_is_never_dropped(self, bus: Bus, behind: Behind) -> None:
        job = await queued(bus)
        await claimed(bus, "w1")
        await bus.queue.reap()
        lane = behind.keys.lane(0, "m", "interactive", "default")
        assert [each["name"] for each in await behind.client.xinfo_consumers(lane, "workers")] == [b"w1"]
        await behind.let_lease_run_out(job.id)
        assert (await claimed(bus, "w2", sweep=True)).job.id == job.id


class TestServerTroubles:
    async def test_work_goes_on_after_the_server_was_emptied(self, bus: Bus, behind: Behind) -> None:
        await queued(bus)
        lost = await claimed(bus)
        await behind.client.flushall()
        assert await bus.queue.append([Chunk(lost.lease, 1, tokens("a"))]) == [Verdict.LOST]
        job = await queued(bus)
        claim = await claimed(bus)
        assert claim.job.id == job.id
        assert await bus.queue.finish(claim.lease, SUCCEEDED, 1)

    async def test_a_group_made_again_takes_no_job_from_its_holder(self, bus: Bus, behind: Behind) -> None:
        held = await queued(bus)
        claim = await claimed(bus, "w1")
        waiting = await queued(bus)
        await behind.client.xgroup_destroy(behind.keys.lane(0, "m", "interactive", "default"), "workers")
        [other] = await bus.queue.claim("w2", "m", ANY)
        assert other.job.id == waiting.id
        assert await bus.queue.append([Chunk(claim.lease, 1, tokens("a"))]) == [Verdict.OK]
        assert await bus.queue.finish(claim.lease, SUCCEEDED, 2)
        assert await status_of(bus, held.id) is JobStatus.SUCCEEDED

    async def test_a_full_server_refuses_new_jobs_and_drains(self, bus: Bus, behind: Behind) -> None:
        jobs = [await queued(bus, is_durable=True) for _ in range(3)]
        await behind.client.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(BusUnavailable):
                await queued(bus)
            lease = (await bus.queue.claim("w1", "m", Wanted(0, 1, 0)))[0].lease
            assert await bus.queue.append([Chunk(lease, 1, tokens("a"))]) == [Verdict.OK]
            assert await bus.queue.finish(lease, SUCCEEDED, 2)
            assert await bus.queue.release((await bus.queue.claim("w1", "m", Wanted(0, 1, 0)))[0].lease)
            assert (await bus.queue.cancel(jobs[2].id)).status is JobStatus.CANCELLED
            await bus.queue.reap()
        finally:
            await behind.client.config_set("maxmemory", "0")
        await queued(bus)


class TestRecord:
    async def test_a_record_tells_everything_a_client_may_know(self, bus: Bus) -> None:
        job = await queued(
            bus,
            model="a model/é",
            tenant="t:1",
            lane=Lane.BULK,
            endpoint="/v1/chat/completions",
            metadata={"a": "b"},
            body='{"x": 1}',
            deadline_s=60,
        )
        record = await bus.queue.record(job.id)
        assert record
        shown = record.model_dump(exclude={"created_at", "deadline_at"})
        assert shown == {
            "id": job.id,
            "model": job.model,
            "endpoint": job.endpoint,
            "compat": job.compat,
            "lane": Lane.BULK,
            "tenant": "t:1",
            "status": JobStatus.QUEUED,
            "attempts": 0,
            "started_at": None,
            "ended_at": None,
            "position": 1,
            "eta_s": None,
            "body": '{"x": 1}',
            "metadata": {"a": "b"},
            "finished": None,
            "is_brief": False,
        }
        assert record.deadline_at == pytest.approx(record.created_at + 60)

    async def test_positions_move_up(self, bus: Bus) -> None:
        jobs = [await queued(bus) for _ in range(5)]

        async def positions() -> list[int | None]:
            records = [await bus.queue.record(job.id) for job in jobs]
            return [record.position for record in records if record]

        assert await positions() == [1, 2, 3, 4, 5]
        [first, _] = await bus.queue.claim("w1", "m", Wanted(0, 2, 0))
        assert await positions() == [None, None, 1, 2, 3]
        await bus.queue.finish(first.lease, SUCCEEDED, 1)
        record = await bus.queue.record(jobs[4].id)
        assert record and record.eta_s and record.eta_s > 0

    async def test_no_position_is_behind_all_who_wait(self, bus: Bus) -> None:
        first, second, third = [await queued(bus, tenant="t:1") for _ in range(3)]
        for job in (first, second):
            await bus.queue.cancel(job.id)
        record = await bus.queue.record(third.id)
        assert record and record.position == 1

    async def test_other_tenants_and_people_count_into_a_position(self, bus: Bus) -> None:
        for _ in range(3):
            await queued(bus, tenant="hog", lane=Lane.BULK)
        mine = await queued(bus, tenant="me", lane=Lane.BULK)
        await queued(bus)
        record = await bus.queue.record(mine.id)
        assert record and record.position == 3  # one of the hog's, and the person's, go before

    async def test_inputs_wait_for_inputs_alone(self, bus: Bus) -> None:
        await queued(bus)
        mine = [await queued(bus, request=INPUT, lane=lane) for lane in (Lane.INTERACTIVE, Lane.BULK, Lane.BULK)]
        records = [await bus.queue.record(job.id) for job in mine]
        assert [record.position for record in records if record] == [1, 2, 3]


class TestWakes:
    async def test_a_worker_hears_of_new_and_released_work(self, wide: Bus) -> None:
        async with aclosing(wide.queue.wakes("w1", "m")) as wakes:
            assert await anext(wakes) == ("resync", None)
            await queued(wide, model="another")
            await queued(wide)
            assert await asyncio.wait_for(anext(wakes), 5) == ("new", None)
            await wide.queue.release((await claimed(wide)).lease)
            assert await asyncio.wait_for(anext(wakes), 5) == ("released", None)

    async def test_a_lost_connection_is_told_as_resync(self, bus: Bus, behind: Behind) -> None:
        async with aclosing(bus.queue.wakes("w1", "m")) as wakes:
            assert (await anext(wakes)).kind == "resync"
            for _ in range(3):
                await behind.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                assert (await asyncio.wait_for(anext(wakes), 5)).kind == "resync"
            await queued(bus)
            assert (await asyncio.wait_for(anext(wakes), 5)).kind == "new"


async def test_progress_alone_is_said_and_not_kept(bus: Bus, behind: Behind) -> None:
    job = await queued(bus)
    lease = (await claimed(bus)).lease
    chunk = Chunk(lease, 1, progress=Progress(total=2, cache=0, processed=1, time_ms=1))
    assert await bus.queue.append([chunk]) == [Verdict.OK]
    assert len(await behind.log(job.id)) == 1


def test_a_lease_knows_its_worker_and_epoch() -> None:
    lease = Lease("job_0_a", "host%3A1:7:beef")
    assert (lease.worker, lease.epoch) == ("host%3A1", 7)


class TestPages:
    async def test_pages_hold_every_durable_job_of_a_tenant_once_newest_first(self, wide: Bus) -> None:
        ids = [(await queued(wide, is_durable=True, tenant="t")).id for _ in range(25)]
        await queued(wide, is_durable=True, tenant="other")
        await queued(wide, tenant="t")
        seen: list[str] = []
        after, has_more = None, True
        while has_more:
            records, has_more, after = await wide.queue.page("t", limit=10, after=after)
            seen += [record.id for record in records]
            assert len(records) == 10 or not has_more
        created = {job_id: (record.created_at, job_id) for job_id in ids if (record := await wide.queue.record(job_id))}
        assert seen == sorted(ids, key=created.__getitem__, reverse=True)

    async def test_many_of_one_millisecond_are_all_there(self, bus: Bus, behind: Behind) -> None:
        ids = [(await queued(bus, is_durable=True)).id for _ in range(250)]
        index = behind.keys.index(0, "default")
        await behind.client.zadd(index, dict.fromkeys(ids, 5))
        for job_id in ids:
            await behind.client.hset(behind.keys.job(job_id), "created_ms", 5)
        first = await bus.queue.page("default", limit=200)
        second = await bus.queue.page("default", limit=200, after=first.last_id)
        assert [record.id for record in first.records + second.records] == sorted(ids, reverse=True)
        assert (first.has_more, second.has_more) == (True, False)

    async def test_a_status_can_be_asked_for(self, bus: Bus) -> None:
        jobs = [await queued(bus, is_durable=True) for _ in range(7)]
        for job in jobs[::2]:
            await bus.queue.cancel(job.id)
        page = await bus.queue.page("default", status=JobStatus.CANCELLED)
        assert {record.id for record in page.records} == {job.id for job in jobs[::2]}
        page = await bus.queue.page("default", status=JobStatus.SUCCEEDED)
        assert page == ([], False, None)

    async def test_what_is_gone_leaves_the_index(self, bus: Bus, behind: Behind) -> None:
        for _ in range(20):
            gone = await queued(bus, is_durable=True)
            await behind.client.delete(behind.keys.job(gone.id))
        assert (await bus.queue.page("default")).records == []
        for _ in range(40):
            await queued(bus, is_durable=True)
        index = behind.keys.index(0, "default")
        assert await behind.client.zcard(index) < 50
        assert await behind.client.pttl(index) > 0

    async def test_a_page_may_begin_behind_a_job_that_is_gone(self, wide: Bus, behind: Behind) -> None:
        jobs = [await queued(wide, is_durable=True) for _ in range(5)]
        first = await wide.queue.page("default", limit=2)
        assert first.last_id is not None
        await behind.client.delete(behind.keys.job(first.last_id))
        second = await wide.queue.page("default", limit=10, after=first.last_id)
        listed = [record.id for record in first.records + second.records]
        assert sorted(listed) == sorted(job.id for job in jobs)

    async def test_a_search_that_pauses_among_the_gone_goes_on(
        self, bus: Bus, behind: Behind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shared.bus.jobrecords.PAGE_STEPS", 1)
        monkeypatch.setattr("shared.bus.jobrecords.PAGE_STEP", 4)
        oldest = await queued(bus, is_durable=True)
        for _ in range(30):
            await queued(bus, is_durable=True)
        index = behind.keys.index(0, "default")
        for gone in await behind.client.zrange(index, 1, -1):
            await behind.client.delete(behind.keys.job(gone.decode()))
        page = await bus.queue.page("default")
        assert page.has_more
        seen: list[str] = []
        while page.has_more:
            page = await bus.queue.page("default", after=page.last_id)
            seen += [record.id for record in page.records]
        assert seen == [oldest.id]

    async def test_jobs_that_go_while_a_page_is_read_hide_no_others(
        self, bus: Bus, behind: Behind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = {(await queued(bus, is_durable=True)).id for _ in range(10)}
        [newest] = [record.id for record in (await bus.queue.page("default", limit=1)).records]
        match = bus.queue._matching

        async def lose_one(*arguments: Any) -> Any:
            matching = await match(*arguments)
            await behind.client.delete(behind.keys.job(newest))
            return matching

        monkeypatch.setattr(bus.queue, "_matching", lose_one)
        page = await bus.queue.page("default", limit=4)
        rest = await bus.queue.page("default", limit=10, after=page.last_id)
        assert (len(page.records), page.has_more) == (4, True)
        assert {record.id for record in page.records + rest.records} == ids - {newest}

    async def test_a_page_begins_only_behind_a_job_of_the_tenant(self, bus: Bus) -> None:
        other = await queued(bus, is_durable=True, tenant="other")
        for after in (other.id, "job_0_00", "rubbish"):
            with pytest.raises(UnknownJob):
                await bus.queue.page("default", after=after)
