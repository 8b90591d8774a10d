"""arq, polling every 5 ms and not every 500: its cap is what it reads in one poll."""

from __future__ import annotations

import asyncio
from typing import Any

from arq.connections import RedisSettings, create_pool
from arq.worker import Worker, func

from bench.peers import Turn, take


async def run(turn: Turn) -> None:
    async def no_op(_context: dict[str, Any]) -> None:
        turn.count()

    pool = await create_pool(RedisSettings.from_dsn(turn.url))
    worker = Worker(
        [func(no_op, name="no_op")],
        redis_pool=await create_pool(RedisSettings.from_dsn(turn.url)),
        max_jobs=64,
        queue_read_limit=512,
        poll_delay=0.005,
        keep_result=0,
        log_results=False,
        handle_signals=False,
    )
    working = asyncio.create_task(worker.async_run())
    await turn.produce(lambda: pool.enqueue_job("no_op"), tasks=16)
    await turn.end()
    working.cancel()


if __name__ == "__main__":
    take(run)
