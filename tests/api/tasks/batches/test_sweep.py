"""Batches that processes of the tasks role find and work on, and what is left to the next one when they go."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from arq.constants import in_progress_key_prefix

from api.tasks.arqworker import arq_link, make_worker
from api.tasks.batches import validation
from api.tasks.batches.holding import Rest
from api.tasks.batches.step import Work
from api.tasks.batches.sweep import STEP, find_batches, trade, work_on_batches
from shared.batches import BatchStatus
from shared.bus import Hold
from shared.settings import TasksSettings
from tests.api.scripted_worker import ScriptedWorker
from tests.api.tasks.batches.conftest import Bench, names, say, until
from tests.api.tasks.test_tasks import tasks_process

PATIENCE_S = 40.0


@asynccontextmanager
async def at_work(bench: Bench, settings: TasksSettings) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Both parts of a tasks process, cancelled at the end as that does."""
    parts = [
        asyncio.create_task(work_on_batches(settings, bench.bus, bench.store, bench.images)),
        asyncio.create_task(find_batches(settings, bench.bus)),
    ]
    try:
        yield parts
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


async def ended(bench: Bench, batch_id: str) -> BatchStatus:
    async def has_ended() -> bool:
        return (await bench.batch(batch_id)).status.is_ended

    await until(has_ended, PATIENCE_S)
    return (await bench.batch(batch_id)).status


async def until_held(bench: Bench, batch_id: str) -> None:
    name = f"{bench.settings.namespace}:{{p0}}:batch:{batch_id}"
    await until(lambda: asked(bench, "HEXISTS", name, "hold"), PATIENCE_S)


async def asked(bench: Bench, *command: str | int) -> Any:
    [reply] = await bench.bus._link.send([command])
    return reply


async def is_due(bench: Bench, batch_id: str) -> bool:
    return batch_id in [due.batch_id for due in await bench.bus.batches.due()]


async def test_what_is_due_is_worked_on_side_by_side(bench: Bench, settings: TasksSettings) -> None:
    batches = [await bench.made([say(f"{n}")]) for n in range(20)]
    async with at_work(bench, settings):
        assert {await ended(bench, batch_id) for batch_id in batches} == {BatchStatus.COMPLETED}


async def test_nobody_waits_for_a_batch_that_takes_long(
    bench: Bench, settings: TasksSettings, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for its file to be read, nor for its lines."""
    monkeypatch.setattr(validation, "LARGE", 1000)
    async with at_work(bench, settings):
        slow = await bench.made([say("slow", "hold a|" + "b" * 1000)], tenant="default")
        await until_held(bench, slow)
        assert await ended(bench, await bench.made([say("quick")])) is BatchStatus.COMPLETED
        await worker.has_taken(2)
        assert await ended(bench, await bench.made([say("quick")])) is BatchStatus.COMPLETED
        assert not (await bench.batch(slow)).status.is_ended
        worker.go.set()
        assert await ended(bench, slow) is BatchStatus.COMPLETED


async def test_who_is_told_to_leave_while_a_file_is_read_leaves_it_to_the_next_at_once(
    bench: Bench, settings: TasksSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "LARGE", 0)
    batch_id = await bench.made([say("a")])
    async with at_work(bench, settings.model_copy(update={"lease_s": 600.0})):
        await until_held(bench, batch_id)
        assert not await is_due(bench, batch_id)
    assert await is_due(bench, batch_id)
    assert (await bench.ended(batch_id)).status is BatchStatus.COMPLETED


async def test_a_job_that_arq_has_lost_is_asked_for_again(
    bench: Bench, settings: TasksSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker died after it took the job and before it took the batch: arq refuses that job for an hour."""
    monkeypatch.setattr("api.tasks.batches.sweep.AGAIN_S", 0.5)
    batch_id = await bench.made([say("a")])
    finding = asyncio.create_task(find_batches(settings, bench.bus))
    queue = f"{settings.namespace}:tasks:batches"
    await until(lambda: asked(bench, "ZCARD", queue))
    finding.cancel()
    with suppress(asyncio.CancelledError):
        await finding
    [taken] = await asked(bench, "ZRANGE", queue, 0, -1)
    await asked(bench, "SET", f"arq:in-progress:{taken.decode()}", "1", "PX", 60_000)
    async with at_work(bench, settings):
        assert await ended(bench, batch_id) is BatchStatus.COMPLETED


@pytest.mark.slow
async def test_processes_are_told_to_leave_and_killed_and_the_last_one_finishes(
    bench: Bench, settings: TasksSettings, worker: ScriptedWorker
) -> None:
    lines = [say(str(n), "hold a|b", padding="x" * 100_000) for n in range(100)]
    variables = {"SLOTSTREAM_NAMESPACE": settings.namespace, "SLOTSTREAM_BATCH_IN_FLIGHT": "6"}
    async with tasks_process(settings, **variables, SLOTSTREAM_LEASE_S="600") as process:
        batch_id = await bench.made(lines)
        await until_held(bench, batch_id)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert (await bench.batch(batch_id)).status is BatchStatus.VALIDATING
    async with tasks_process(settings, **variables, SLOTSTREAM_LEASE_S="2") as process:
        await worker.has_taken(6)
        process.kill()
    worker.go.set()
    async with tasks_process(settings, **variables):
        assert await ended(bench, batch_id) is BatchStatus.COMPLETED
    assert names((await bench.records(batch_id))[0]) == sorted(str(n) for n in range(100))
    assert len(worker.taken) == 100


async def test_a_step_that_was_cut_off_is_taken_up_without_a_word_of_giving_up(
    bench: Bench, settings: TasksSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_begun = asyncio.Event()

    async def hang(_: Work, hold: Hold) -> Rest:
        is_begun.set()
        await asyncio.sleep(60)
        return Rest(0.0)

    batch_id = await bench.made([say("a")])
    with monkeypatch.context() as hanging:
        hanging.setattr(Work, "step", hang)
        async with at_work(bench, settings):
            await asyncio.wait_for(is_begun.wait(), PATIENCE_S)
    async with at_work(bench, settings):
        assert await ended(bench, batch_id) is BatchStatus.COMPLETED
        await until(lambda: has_no_job_left(bench), PATIENCE_S)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_what_killed_processes_left_in_arqs_queue_keeps_nobody_waiting(
    bench: Bench, settings: TasksSettings
) -> None:
    """arq looks at the hundred oldest jobs, also at those that are marked as being at work with somebody."""
    queue = trade().queue(settings.namespace)
    async with arq_link(settings, "test") as redis:
        mark_s = make_worker(redis, settings.namespace, trade(), {}).in_progress_timeout_s
        for n in range(120):
            await redis.enqueue_job(STEP, "batch_0_" + "0" * 24, n, _job_id=f"left-{n}", _queue_name=queue)
            await redis.psetex(f"{in_progress_key_prefix}left-{n}", round(mark_s * 1000), b"1")
    batch_id = await bench.made([say("a")])
    async with at_work(bench, settings):
        assert await ended(bench, batch_id) is BatchStatus.COMPLETED


async def has_no_job_left(bench: Bench) -> bool:
    return await asked(bench, "ZCARD", trade().queue(bench.settings.namespace)) == 0
