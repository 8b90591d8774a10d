from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from arq import ArqRedis
from arq.constants import job_key_prefix, retry_key_prefix
from arq.worker import func

from api.tasks import arqworker
from shared.settings import TasksSettings

done: list[str] = []


async def do(ctx: dict[str, Any]) -> None:
    done.append(ctx["job_id"])


TRADE = arqworker.Trade("test", functions=(func(do),))


async def worked_off(settings: TasksSettings, redis: ArqRedis) -> None:
    """All that is in the queue."""
    working = asyncio.create_task(arqworker.work(settings, TRADE, {}))
    async with asyncio.timeout(20):
        while await redis.zcard(TRADE.queue(settings.namespace)):  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.02)
    working.cancel()
    await asyncio.wait((working,))


async def test_a_job_that_arq_gives_up_is_one_line_of_the_log(
    settings: TasksSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async with arqworker.arq_link(settings, "test") as redis:
        await redis.enqueue_job("do", _job_id="gone", _queue_name=TRADE.queue(settings.namespace))
        await redis.delete(job_key_prefix + "gone")
        await worked_off(settings, redis)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == ["job gone expired"]


async def test_a_job_that_was_cut_off_many_times_is_done(
    settings: TasksSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async with arqworker.arq_link(settings, "test") as redis:
        await redis.enqueue_job("do", _job_id="cut", _queue_name=TRADE.queue(settings.namespace))
        await redis.set(retry_key_prefix + "cut", 20)
        await worked_off(settings, redis)
    assert done == ["cut"]
    assert not [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
