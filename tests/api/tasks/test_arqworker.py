from __future__ import annotations

import asyncio

import pytest
from arq.constants import job_key_prefix
from arq.worker import func

from api.tasks import arqworker
from shared.settings import TasksSettings


async def test_a_job_that_arq_gives_up_is_one_line_of_the_log(
    settings: TasksSettings, caplog: pytest.LogCaptureFixture
) -> None:
    trade = arqworker.Trade("test", functions=(func(asyncio.sleep, name="any"),))
    async with arqworker.arq_link(settings, "test") as redis:
        await redis.enqueue_job("any", 0, _job_id="gone", _queue_name=trade.queue(settings.namespace))
        await redis.delete(job_key_prefix + "gone")
        working = asyncio.create_task(arqworker.work(settings, trade, {}))
        async with asyncio.timeout(20):
            while await redis.zcard(trade.queue(settings.namespace)):  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.02)
        working.cancel()
        await asyncio.wait((working,))
    assert [(record.getMessage(), record.exc_info) for record in caplog.records if record.name == "arq.jobs"] == []
    assert "job gone expired" in caplog.messages
