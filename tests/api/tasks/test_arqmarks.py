"""What arq sees of a job that is under way, against arq's own keys."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from arq.connections import ArqRedis
from arq.constants import in_progress_key_prefix

from api.tasks import arqmarks
from api.tasks.arqmarks import marked
from api.tasks.arqworker import arq_link
from shared.settings import TasksSettings

QUEUE, JOB = "queue", "deliver:one"


async def a_job(redis: ArqRedis) -> dict[str, Any]:
    """A job as arq has it when it calls a function, and what that function is given."""
    await redis.zadd(QUEUE, {JOB: now_ms() - 1000})
    await redis.psetex(in_progress_key_prefix + JOB, 200, b"1")
    return {"redis": redis, "job_id": JOB, "queue": QUEUE}


def now_ms() -> float:
    return time.time() * 1000


async def test_a_mark_lasts_as_long_as_the_work_and_polls_pass_it_by(
    settings: TasksSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arqmarks, "RENEW_EVERY_S", 0.05)
    async with arq_link(settings, "test") as redis:
        async with marked(await a_job(redis)):
            await asyncio.sleep(0.3)  # longer than arq's own mark
            assert 1000 < await redis.pttl(in_progress_key_prefix + JOB) <= 1000 * arqmarks.MARK_S
            assert await redis.zrangebyscore(QUEUE, "-inf", now_ms()) == []
        assert await redis.zrangebyscore(QUEUE, "-inf", now_ms()) == [JOB.encode()]


async def test_work_that_is_cut_off_leaves_its_job_to_the_next(settings: TasksSettings) -> None:
    async with arq_link(settings, "test") as redis:
        ctx = await a_job(redis)
        is_begun = asyncio.Event()

        async def work() -> None:
            async with marked(ctx):
                is_begun.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await is_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await redis.zrangebyscore(QUEUE, "-inf", now_ms()) == [JOB.encode()]


async def test_a_job_that_is_done_is_not_put_back(settings: TasksSettings) -> None:
    async with arq_link(settings, "test") as redis:
        async with marked(await a_job(redis)):
            await redis.zrem(QUEUE, JOB)
        assert await redis.zcard(QUEUE) == 0


async def test_work_that_is_over_while_a_connection_for_its_mark_is_made_waits_for_nothing(
    settings: TasksSettings,
) -> None:
    for n_turns in range(40):  # of the loop, in which the connection comes to stand
        async with arq_link(settings, "test") as redis, asyncio.timeout(5), marked(await a_job(redis)):
            in_use = asyncio.create_task(redis.ping())
            for _ in range(n_turns):
                await asyncio.sleep(0)
            await in_use
