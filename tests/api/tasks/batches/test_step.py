"""What becomes of a batch, from its making to its files."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.schemas.dialect import DIALECTS, TODAY
from api.tasks.batches import feeding, patience, step, validation
from api.tasks.batches.making import LARGE
from shared.batches import BatchStatus, Usage, error_file_id, line_job_id, output_file_id, plan_object
from shared.errors import StoreUnavailable, UnknownFile
from shared.events import ReplyForm
from shared.files import object_of
from shared.jobs import Compat
from tests.api.scripted_worker import ScriptedWorker
from tests.api.tasks.batches.conftest import Bench, bench_of, jsonl, line, names, say, until

WEBHOOK = {"url": "https://93.184.215.14/", "secret": "whsec_" + "QUFB" * 10}


async def test_each_line_is_answered_as_its_path_would_have_answered_it(bench: Bench) -> None:
    lines = [
        say("native", "say one|two"),
        line("chat", "/v1/chat/completions", messages=[{"role": "user", "content": "say hé|😀"}]),
        line("response", "/v1/responses", input="say x"),
        line("vectors", "/v1/embeddings", input=["a", "b"], encoding_format="base64"),
        line("ranks", "/v1/rerank", query="abc", documents=["ab", "zz"]),
        line("ollama", "/api/generate", model="tiny", prompt="say o"),
        line("choices", "/v1/completions", prompt=["say p", "say q"], n=2),
    ]
    batch_id = await bench.made(lines)
    batch = await bench.ended(batch_id)
    assert (batch.status, batch.n_total, batch.n_completed, batch.n_failed) == (BatchStatus.COMPLETED, 7, 7, 0)
    outputs, errors = await bench.records(batch_id)
    assert (names(outputs), errors) == (names(lines), [])
    bodies = {record["custom_id"]: record["response"]["body"] for record in outputs}
    assert bodies["native"]["content"] == "onetwo"
    assert bodies["chat"]["choices"][0]["message"]["content"] == "hé😀"
    assert bodies["response"]["output"][0]["content"][0]["text"] == "x"
    assert [len(entry["embedding"]) for entry in bodies["vectors"]["data"]] == [24, 24]
    assert bodies["ranks"]["results"][0]["index"] == 0
    assert bodies["ollama"]["response"] == "o"
    assert [choice["text"] for choice in bodies["choices"]["choices"]] == ["p", "p'", "q", "q'"]
    for record in outputs:
        assert record["error"] is None
        assert record["response"]["status_code"] == 200
        assert record["response"]["request_id"].startswith("job_")
        assert record["id"] == "batch_req_" + record["response"]["request_id"].rpartition("_")[2]
    # Each of six prompts has 7 tokens, of which 3 were in a cache; inputs and documents have as many as letters.
    assert batch.usage == Usage(input_tokens=6 * 7 + 2 + 4, cached_tokens=6 * 3, output_tokens=2 + 4 + 1 + 1 + 4)


async def test_a_batch_that_is_over_has_its_file_and_its_times_in_order(bench: Bench) -> None:
    batch_id = await bench.made([say("a"), say("b")], metadata={"k": "v"})
    batch = await bench.ended(batch_id)
    assert (batch.output_file_id, batch.error_file_id) == (output_file_id(batch_id), None)
    file = await bench.bus.files.record(output_file_id(batch_id), "default")
    assert file is not None
    content = b"".join([part for piece in file.pieces async for part in bench.store.read(piece.name)])
    assert names([json.loads(text) for text in content.splitlines()]) == ["a", "b"]
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert times == sorted(time for time in times if time is not None)
    assert [row.id for row in await bench.bus.outbox.read()] == [batch_id]


# What fails


async def test_lines_that_fail_do_so_as_over_http_and_the_others_succeed(bench: Bench) -> None:
    async with ScriptedWorker(bench.bus, model="other", worker_id="w2"):
        await bench.images.fleet.look()
        lines = [
            *(say(name, "say x", model="tiny") for name in ("good 1", "good 2", "good 3")),
            say("bad type", model="tiny", n_predict="many"),
            say("too long", "long", model="tiny"),
            say("unknown model", model="nobody"),
            line("own webhook", "/v1/responses", model="tiny", input="x", webhook=WEBHOOK),
        ]
        batch = await bench.ended(batch_id := await bench.made(lines))
    assert (batch.status, batch.n_total, batch.n_completed, batch.n_failed) == (BatchStatus.COMPLETED, 7, 3, 4)
    outputs, errors = await bench.records(batch_id)
    assert names(outputs) == ["good 1", "good 2", "good 3"]
    told = {record["custom_id"]: record for record in errors}
    bodies = {name: record["response"]["body"]["error"] for name, record in told.items()}
    assert {name: record["response"]["status_code"] for name, record in told.items()} == {
        "bad type": 400,
        "too long": 400,
        "unknown model": 404,
        "own webhook": 400,
    }
    assert bodies["bad type"]["message"].startswith("Field 'n_predict'")
    assert bodies["own webhook"]["message"] == "Field 'webhook': a batch may have one, its lines have none"
    assert (bodies["too long"]["type"], bodies["too long"]["n_ctx"]) == ("exceed_context_size_error", 64)
    assert bodies["unknown model"]["type"] == "model_not_found"
    assert all(record["error"] is None for record in errors)
    assert [told[name]["line"] for name in ("bad type", "too long", "unknown model")] == [4, 5, 6]
    assert [told[name]["response"]["request_id"] for name in ("bad type", "too long", "unknown model")] == [
        line_job_id(batch_id, number) for number in (4, 5, 6)
    ]


async def test_an_error_looks_as_the_clients_of_its_path_expect_it(bench: Bench) -> None:
    lines = [
        line("openai", "/v1/completions", prompt=7),
        line("ollama", "/api/generate", model="tiny", prompt="long"),
        line("native", "/completion", prompt="die x"),
    ]
    await bench.ended(batch_id := await bench.made(lines))
    _, errors = await bench.records(batch_id)
    told = {record["custom_id"]: record["response"] for record in errors}
    assert told["openai"]["body"]["error"]["param"] == "prompt"
    assert told["ollama"]["body"] == {"error": "the input length exceeds the context length"}
    assert (told["native"]["status_code"], told["native"]["body"]["error"]["type"]) == (500, "server_error")


async def test_bad_lines_have_their_records_at_once_and_are_listed(bench: Bench) -> None:
    content = b"\n".join([b"x", jsonl([say("a")]), jsonl([say("a", "say dup")]), jsonl([say("b", "hold a")])])
    batch = await bench.step(batch_id := await bench.made(content))
    assert (batch.status, batch.n_total, batch.n_planned, batch.n_failed) == (BatchStatus.IN_PROGRESS, 4, 2, 2)
    assert [(fault.code, fault.line, fault.param) for fault in batch.faults] == [
        ("invalid_json", 1, None),
        ("duplicate_custom_id", 4, "custom_id"),
    ]
    _, errors = await bench.records(batch_id)
    assert [record["error"]["code"] for record in errors] == ["invalid_json", "duplicate_custom_id"]
    assert (await bench.ended(batch_id)).n_completed == 2


async def test_a_fault_of_ours_fails_one_line_and_stays_in_the_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fields: dict[str, Any]) -> Any:
        raise ZeroDivisionError("ours")

    readers = {**TODAY.readers, "/infill": broken}
    monkeypatch.setitem(DIALECTS, Compat.TODAY, replace(TODAY, readers=readers))
    lines = [line("broken", "/infill", input_prefix="say a", input_suffix=""), say("good")]
    batch = await bench.ended(batch_id := await bench.made(lines))
    assert (batch.n_completed, batch.n_failed) == (1, 1)
    _, [record] = await bench.records(batch_id)
    assert (record["response"]["status_code"], "ours" in json.dumps(record)) == (500, False)


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "empty_file"), (b"\0\1", "not_text"), (b"x\ny", "no_valid_lines"), (b"x" * 2_000_001, "file_too_large")],
)
async def test_a_file_that_cannot_be_run_fails_the_batch(bench: Bench, content: bytes, code: str) -> None:
    settings = bench.settings.model_copy(update={"max_batch_mb": 2.0})
    batch = await bench.ended(await bench.made(content), bench.another(settings))
    assert (batch.status, batch.n_total, batch.faults[0].code) == (BatchStatus.FAILED, 0, code)
    assert (batch.output_file_id, batch.error_file_id) == (None, None)


@pytest.mark.parametrize("whose", ["nobody's", "another's"])
async def test_a_file_that_is_not_there_any_more_fails_the_batch_and_it_says_so(bench: Bench, whose: str) -> None:
    batch_id = await bench.made([say("a")], tenant="me" if whose == "another's" else "default")
    if whose == "nobody's":
        await bench.bus.files.delete((await bench.batch(batch_id)).input_file_id, "default")
    batch = await bench.ended(batch_id)
    assert (batch.status, [fault.code for fault in batch.faults]) == (BatchStatus.FAILED, ["file_not_found"])


async def test_a_file_that_is_known_and_not_in_the_store_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has given this process another store."""
    batch_id = await bench.made(lines := [say("a")])
    name = object_of((await bench.batch(batch_id)).input_file_id)
    await bench.store.delete([name])
    hold = await bench.held(batch_id)
    with pytest.raises(StoreUnavailable, match="--store-url"):
        await bench.work.step(hold)
    await bench.bus.batches.rest(hold, 0)
    await bench.store.put(name, jsonl(lines))
    assert (await bench.ended(batch_id)).n_completed == 1
    late = await bench.made([say("a")], window_s=0.01)
    await bench.store.delete([object_of((await bench.batch(late)).input_file_id)])
    await asyncio.sleep(0.02)
    hold = await bench.held(late)
    with pytest.raises(StoreUnavailable, match="--store-url"):
        await bench.work.step(hold)
    await bench.bus.batches.rest(hold, 0)
    monkeypatch.setattr(patience, "PATIENCE_S", 0)
    assert (await bench.ended(late)).faults[0].code == "file_not_found"


async def test_lines_are_not_given_up_when_the_plan_is_not_in_the_store(bench: Bench) -> None:
    batch_id = await bench.made([say("a"), say("b")])
    work = bench.another(bench.settings.model_copy(update={"batch_in_flight": 1}))
    await bench.step(batch_id, work)
    [plan] = [part async for part in bench.store.read(plan_object(batch_id))]
    await bench.store.delete([plan_object(batch_id)])
    hold = await bench.held(batch_id)
    with pytest.raises(UnknownFile):
        await work.step(hold)
    await bench.bus.batches.rest(hold, 0)
    await bench.store.put(plan_object(batch_id), plan)
    assert (await bench.ended(batch_id, work)).n_completed == 2


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_batch_whose_plan_is_lost_ends_when_it_has_been_waited_for(
    bench: Bench, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    lines = [say("done"), *(say(name, "hold a|b") for name in ("at work", "next", "never fed"))]
    batch_id = await bench.made([*lines, {"custom_id": "bad"}], window_s=3600 if is_cancelled else 2)
    work = bench.another(bench.settings.model_copy(update={"batch_in_flight": 2}))
    await bench.step(batch_id, work)
    await until(lambda: bench.bus.batches.ended(batch_id))
    await bench.step(batch_id, work)
    await bench.store.delete([plan_object(batch_id)])
    if is_cancelled:
        await bench.bus.batches.cancel(batch_id)
    else:
        await asyncio.sleep(2)
    hold = await bench.held(batch_id)
    with pytest.raises(UnknownFile):  # it is waited for
        await work.step(hold)
    monkeypatch.setattr(patience, "PATIENCE_S", 0)
    await work.step(hold)
    batch = await bench.batch(batch_id)
    assert (batch.status, [fault.code for fault in batch.faults]) == (BatchStatus.FAILED, ["plan_lost", "invalid_url"])
    assert batch.failed_at
    outputs, errors = await bench.records(batch_id)
    assert (names(outputs), names(errors)) == (["done"], ["bad"])
    assert (batch.output_file_id, batch.error_file_id) == (output_file_id(batch_id), error_file_id(batch_id))
    assert [row.status for row in await bench.bus.outbox.read()] == ["failed"]
    at_work = line_job_id(batch_id, 2)

    async def has_stopped() -> bool:
        job = await bench.bus.queue.record(at_work)
        return job is None or job.status.is_ended

    await until(has_stopped)
    assert await bench.bus.batches.due() == []


async def test_a_cancelled_batch_keeps_no_slot_while_its_plan_is_waited_for(
    bench: Bench, worker: ScriptedWorker
) -> None:
    batch_id = await bench.made([say("done"), say("at work", "hold a|b")])
    await bench.step(batch_id)
    await until(lambda: bench.bus.batches.ended(batch_id))
    await bench.store.delete([plan_object(batch_id)])
    await bench.bus.batches.cancel(batch_id)
    with pytest.raises(UnknownFile):  # by what is collected first
        await bench.work.step(await bench.held(batch_id))

    async def has_stopped() -> bool:
        job = await bench.bus.queue.record(line_job_id(batch_id, 2))
        return job is not None and job.status.is_ended

    await until(has_stopped)


async def test_a_batch_that_waits_for_workers_to_stop_after_its_window_is_not_looked_at_all_the_time(
    bench: Bench, worker: ScriptedWorker
) -> None:
    batch_id = await bench.made([say(name, "shut a") for name in "abc"], window_s=1)
    await bench.step(batch_id)
    await worker.has_taken(3)
    await bench.bus.batches.cancel(batch_id)
    await asyncio.sleep(1)
    rest = await bench.work.step(await bench.held(batch_id))
    assert (await bench.batch(batch_id)).n_in_flight == 3
    assert rest.after_s == step.RECALL_EVERY_S


async def test_a_file_whose_planner_is_killed_each_time_fails_its_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batch_id = await bench.made([say("a", "say " + "x" * 1000)])
    monkeypatch.setattr(validation, "LARGE", 1000)
    killed = tmp_path / "killed"
    killed.write_text("#!/bin/sh\nkill -KILL $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(killed))
    hold = await bench.held(batch_id)
    for _ in range(validation.MAX_KILLED - 1):
        with pytest.raises(ChildProcessError):
            await bench.work.step(hold)
    await bench.work.step(hold)
    batch = await bench.batch(batch_id)
    assert (batch.status, batch.faults[0].code) == (BatchStatus.FAILED, "validation_failed")


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_file_that_nobody_manages_to_look_through_is_tried_as_long_as_there_is_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_late: bool
) -> None:
    batch_id = await bench.made([say("a", "say " + "x" * 1000)], window_s=0.01 if is_late else 3600)
    monkeypatch.setattr(validation, "LARGE", 1000)
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    await asyncio.sleep(0.02)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(failing))
        hold = await bench.held(batch_id)
        if is_late:
            await bench.work.step(hold)
            batch = await bench.batch(batch_id)
            assert (batch.status, batch.faults[0].code) == (BatchStatus.FAILED, "validation_failed")
            return
        for _ in range(validation.MAX_KILLED + 1):
            with pytest.raises(ChildProcessError):
                await bench.work.step(hold)
    await bench.bus.batches.rest(hold, 0)
    assert (await bench.ended(batch_id)).n_completed == 1


async def test_a_batch_goes_on_when_its_file_is_deleted_after_validation(bench: Bench) -> None:
    settings = bench.settings.model_copy(update={"batch_in_flight": 1})
    batch_id = await bench.made([say("a"), say("b")])
    await bench.step(batch_id, work := bench.another(settings))
    file_id = (await bench.batch(batch_id)).input_file_id
    await bench.bus.files.delete(file_id, "default")
    await bench.store.delete([object_of(file_id)])
    assert (await bench.ended(batch_id, work)).n_completed == 2


async def test_large_files_wait_for_each_other_and_small_ones_do_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "LARGE", 1000)
    monkeypatch.setattr(validation, "PROCESSES", 1)
    large = [await bench.made([say(str(n), "say " + "x" * 1000)]) for n in range(2)]
    holds = [await bench.held(batch_id) for batch_id in large]
    rests = await asyncio.gather(*map(bench.work.step, holds))
    statuses = [(await bench.batch(batch_id)).status for batch_id in large]
    assert sorted(statuses) == [BatchStatus.IN_PROGRESS, BatchStatus.VALIDATING]
    assert 0 < rests[statuses.index(BatchStatus.VALIDATING)].after_s < 5
    for batch_id, hold in zip(large, holds, strict=True):
        await bench.bus.batches.rest(hold, 0)
        assert (await bench.ended(batch_id)).n_completed == 1


# What waits


async def test_lines_wait_for_a_worker_when_there_has_never_been_one(idle_bench: Bench) -> None:
    batch = await idle_bench.step(batch_id := await idle_bench.made([say("a")]))
    assert (batch.status, batch.n_fed) == (BatchStatus.IN_PROGRESS, 0)
    async with ScriptedWorker(idle_bench.bus):
        assert (await idle_bench.ended(batch_id)).n_completed == 1


async def test_lines_wait_for_a_full_queue_and_none_is_lost(bench: Bench, worker: ScriptedWorker) -> None:
    batch_id = await bench.made([say(str(n), "shut x") for n in range(30)])
    async with bench_of(bench.settings.model_copy(update={"max_queued": 4})) as crowded:
        batch = await crowded.step(batch_id)
        assert 4 <= batch.n_fed <= 4 + worker.n_slots
        worker.go.set()
        assert (await crowded.ended(batch_id)).n_completed == 30
    assert names((await bench.records(batch_id))[0]) == sorted(str(n) for n in range(30))


async def test_no_more_lines_are_on_their_way_than_are_allowed(bench: Bench, worker: ScriptedWorker) -> None:
    work = bench.another(bench.settings.model_copy(update={"batch_in_flight": 3}))
    batch_id = await bench.made([say(str(n), "hold a|b") for n in range(10)])
    for _ in range(3):
        batch = await bench.step(batch_id, work)
        assert (batch.n_fed, batch.n_in_flight) == (3, 3)
    worker.go.set()
    assert (await bench.ended(batch_id, work)).n_completed == 10


async def test_each_slot_has_a_line_at_work_and_one_behind_it_however_many_slots_there_are(
    bench: Bench, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "IN_FLIGHT", 3)
    async with ScriptedWorker(bench.bus, worker_id="w2", n_slots=2):
        await bench.images.fleet.look()
        assert worker.n_slots == 8
        batch = await bench.step(await bench.made([say(str(n), "hold a|b") for n in range(40)]))
        assert batch.n_in_flight == 2 * (8 + 2)
        worker.go.set()


async def test_nor_do_they_weigh_more_and_a_heavy_one_goes_alone(
    bench: Bench, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.tasks.batches.feeding.MAX_WEIGHT", 100_000)
    light, heavy = say("light", "hold a|b", n_predict=4), say("heavy", "hold a|" + "x" * 200_000, n_predict=4)
    batch_id = await bench.made([light | {"custom_id": str(n)} for n in range(20)] + [heavy])
    batch = await bench.step(batch_id)
    assert batch.n_fed == 20
    another = bench.another()  # it does not know what those on their way weigh, and goes by the plan
    assert (await bench.step(batch_id, another)).n_fed == 20
    worker.go.set()
    assert (await bench.ended(batch_id, another)).n_completed == 21


# What is stopped


async def test_a_cancelled_batch_keeps_what_is_done_and_accounts_for_the_rest(
    bench: Bench, worker: ScriptedWorker
) -> None:
    work = bench.another(bench.settings.model_copy(update={"batch_in_flight": 20}))
    lines = [say(f"{n:02}", "say x" if n < 10 else "hold a|b") for n in range(40)]
    batch_id = await bench.made(lines)
    await bench.step(batch_id, work)
    await worker.has_taken(10 + worker.n_slots)
    assert (await bench.step(batch_id, work)).n_completed == 10
    assert (await bench.bus.batches.cancel(batch_id)).status is BatchStatus.CANCELLING
    batch = await bench.ended(batch_id, work)
    assert (batch.status, batch.n_total, batch.n_completed, batch.n_failed) == (BatchStatus.CANCELLED, 40, 10, 30)
    await worker.is_idle()
    outputs, errors = await bench.records(batch_id)
    assert names(outputs) == [f"{n:02}" for n in range(10)]
    assert names(errors) == [f"{n:02}" for n in range(10, 40)]
    assert {(record["error"]["code"], record["response"]) for record in errors} == {("batch_cancelled", None)}


async def test_a_batch_that_is_cancelled_before_it_was_read_has_no_lines(bench: Bench) -> None:
    batch_id = await bench.made([say("a")])
    await bench.bus.batches.cancel(batch_id)
    batch = await bench.ended(batch_id)
    assert (batch.status, batch.n_total) == (BatchStatus.CANCELLED, 0)


async def test_a_cancel_that_comes_while_a_file_is_read_is_not_lost(bench: Bench) -> None:
    batch_id = await bench.made([say("a")])
    hold = await bench.held(batch_id)
    await bench.bus.batches.cancel(batch_id)
    await bench.work.step(hold)
    assert (await bench.batch(batch_id)).status is BatchStatus.CANCELLED


async def test_when_its_time_is_over_finished_lines_are_kept_and_the_others_have_expired(
    bench: Bench, worker: ScriptedWorker
) -> None:
    work = bench.another(bench.settings.model_copy(update={"batch_in_flight": 20}))
    lines = [say(f"{n:02}", "say x" if n < 10 else "hold a|b") for n in range(40)]
    batch_id = await bench.made(lines, window_s=2)
    batch = await bench.ended(batch_id, work)
    assert (batch.status, batch.n_total, batch.n_completed, batch.n_failed) == (BatchStatus.EXPIRED, 40, 10, 30)
    await worker.is_idle()
    outputs, errors = await bench.records(batch_id)
    assert names(outputs) + names(errors) == [f"{n:02}" for n in range(40)]
    assert {(record["error"]["code"], record["response"]) for record in errors} == {("batch_expired", None)}


async def test_a_batch_whose_lines_all_expired_in_the_queue_has_expired(bench: Bench, worker: ScriptedWorker) -> None:
    holding = [await bench.made([say(str(place), "hold a|b")]) for place in range(worker.n_slots)]
    for batch_id in holding:
        await bench.step(batch_id)
    await worker.has_taken(worker.n_slots)
    batch_id = await bench.made([say("a"), say("b")], window_s=0.5)
    await bench.step(batch_id)
    await asyncio.sleep(0.6)
    assert await bench.bus.queue.reap() == 2
    batch = await bench.ended(batch_id)
    assert (batch.status, batch.n_failed) == (BatchStatus.EXPIRED, 2)
    _, errors = await bench.records(batch_id)
    assert {record["error"]["code"] for record in errors} == {"batch_expired"}


async def test_what_has_ended_in_time_counts_when_nobody_looked_until_it_was_over(bench: Bench) -> None:
    """The tasks process was away from just after the lines were fed until long after the window."""
    batch_id = await bench.made([say("a"), say("b")], window_s=0.5)
    await bench.step(batch_id)
    await asyncio.sleep(0.6)
    batch = await bench.ended(batch_id, bench.another())
    assert (batch.status, batch.n_completed) == (BatchStatus.COMPLETED, 2)


async def test_a_batch_whose_time_is_over_before_anybody_looked_has_its_lines_accounted_for(bench: Bench) -> None:
    batch_id = await bench.made(b"x\n" + jsonl([say("a"), say("b")]), window_s=0.01)
    await asyncio.sleep(0.02)
    batch = await bench.ended(batch_id)
    assert (batch.status, batch.n_total, batch.n_failed) == (BatchStatus.EXPIRED, 3, 3)


async def test_a_line_that_is_cancelled_alone_fails_alone(bench: Bench, worker: ScriptedWorker) -> None:
    batch_id = await bench.made([say("a", "hold a|b"), say("b")])
    await bench.step(batch_id)
    await worker.has_taken(2)
    await bench.bus.queue.cancel(line_job_id(batch_id, 1))
    batch = await bench.ended(batch_id)
    assert (batch.status, batch.n_completed, batch.n_failed) == (BatchStatus.COMPLETED, 1, 1)


# What is lost


async def test_a_line_whose_job_has_vanished_says_so(
    bench: Bench, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.tasks.batches.pace.LOST_EVERY_S", 0.0)
    batch_id = await bench.made([say("a", "hold a|b"), say("b")])
    await bench.step(batch_id)
    await worker.has_taken(2)
    await bench.bus._link.send([("DEL", bench.bus._keys.job(line_job_id(batch_id, 1)))])
    batch = await bench.ended(batch_id)
    assert (batch.status, batch.n_completed, batch.n_failed) == (BatchStatus.COMPLETED, 1, 1)
    _, [record] = await bench.records(batch_id)
    assert (record["custom_id"], record["error"]["code"]) == ("a", "job_lost")


# What is done again


async def test_a_retry_runs_those_lines_again_that_failed_and_could_be_run(bench: Bench) -> None:
    lines = [say("a"), say("b", "long"), {"custom_id": "c"}, say("d", n_predict="x"), say("e", model="tiny")]
    first = await bench.made(lines)
    await bench.ended(first)
    batch_id = await bench.made(lines, retry_of=first)
    batch = await bench.ended(batch_id)
    assert (batch.status, batch.n_total, batch.n_completed, batch.n_failed) == (BatchStatus.COMPLETED, 2, 0, 2)
    _, errors = await bench.records(batch_id)
    assert {(record["custom_id"], record["line"]) for record in errors} == {("b", 2), ("d", 4)}
    assert await bench.ended(await bench.made(lines, retry_of=batch_id)) is not None


async def test_a_retry_waits_for_what_should_be_in_the_store(bench: Bench) -> None:
    await bench.ended(first := await bench.made([say("a", "long")]))
    [plan] = [part async for part in bench.store.read(plan_object(first))]
    await bench.store.delete([plan_object(first)])
    hold = await bench.held(batch_id := await bench.made(b"", retry_of=first))
    with pytest.raises(StoreUnavailable, match="--store-url"):
        await bench.work.step(hold)
    await bench.bus.batches.rest(hold, 0)
    await bench.store.put(plan_object(first), plan)
    assert (await bench.ended(batch_id)).n_total == 1


@pytest.mark.parametrize("what", ["plan", "batch", "failures"])
async def test_a_retry_of_what_is_not_there_fails_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", -3600)
    first = await bench.made([say("a", "long" if what == "plan" else "say x")])
    await bench.ended(first)
    if what == "plan":
        await bench.store.delete([plan_object(first)])
    batch_id = await bench.made(b"", retry_of=first if what != "batch" else "batch_0_" + "0" * 24)
    batch = await bench.ended(batch_id)
    code = {"plan": "plan_not_found", "batch": "batch_not_found", "failures": "nothing_to_retry"}[what]
    assert (batch.status, [fault.code for fault in batch.faults]) == (BatchStatus.FAILED, [code])


# What is large, or seldom


async def test_images_of_lines_are_looked_at_and_shown(bench: Bench) -> None:
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    async with ScriptedWorker(bench.bus, model="seeing", worker_id="w2", has_vision=True):
        await bench.images.fleet.look()
        lines = [
            say("seen", "see [img-1]", image_data=[{"data": dot, "id": 1}], model="seeing"),
            say("none", "see [img-1]", image_data=[{"data": base64.b64encode(b"x").decode(), "id": 1}], model="seeing"),
            say("blind", "see [img-1]", image_data=[{"data": dot, "id": 1}], model="tiny"),
        ]
        batch = await bench.ended(batch_id := await bench.made(lines))
    outputs, errors = await bench.records(batch_id)
    assert (names(outputs), names(errors), batch.n_failed) == (["seen"], ["blind", "none"], 2)
    assert dot in outputs[0]["response"]["body"]["content"]
    assert {record["custom_id"]: record["response"]["status_code"] for record in errors} == {"none": 400, "blind": 501}


async def test_large_lines_and_large_answers_come_through(bench: Bench) -> None:
    lines = [
        say("long prompt", "say " + "x" * (2 * LARGE), n_predict=1),
        line("vectors", "/v1/embeddings", input=[str(n) for n in range(2000)], encoding_format="float"),
        say("after"),
    ]
    batch = await bench.ended(batch_id := await bench.made(lines))
    assert batch.n_completed == 3
    outputs, _ = await bench.records(batch_id)
    told = {record["custom_id"]: record["response"]["body"] for record in outputs}
    assert len(told["vectors"]["data"]) == 2000
    assert told["long prompt"]["content"] == "x" * (2 * LARGE)


async def test_many_records_are_several_segments(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.tasks.batches.segments.FULL_BYTES", 3000)
    batch_id = await bench.made([say(f"{n:02}", "say " + "x" * 100) for n in range(20)])
    batch = await bench.ended(batch_id)
    segments = await bench.bus.batches.segments(batch_id)
    assert len(segments) == batch.n_segments > 3
    assert all(segment.output_bytes < 6000 for segment in segments)
    assert names((await bench.records(batch_id))[0]) == [f"{n:02}" for n in range(20)]


async def test_reasoning_is_counted_where_an_answer_tells_of_it(bench: Bench, worker: ScriptedWorker) -> None:
    worker.reply = ReplyForm(reasoning=("<t>", "</t>"))
    lines = [line("a", "/v1/responses", input="say <t>|hm|</t>|yes")]
    batch = await bench.ended(await bench.made(lines))
    assert (batch.usage.output_tokens, batch.usage.reasoning_tokens > 0) == (4, True)


async def test_clients_of_2024_have_their_answers(bench: Bench) -> None:
    lines = [line("a", "/v1/completions", prompt=["say x"])]
    await bench.ended(batch_id := await bench.made(lines, compat=Compat.OF_2024))
    [record], _ = await bench.records(batch_id)
    assert record["response"]["body"].keys() >= {"content", "stopped_eos"}
