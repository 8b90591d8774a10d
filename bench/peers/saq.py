"""saq, with 64 handlers at once; jobs are forgotten when they end."""

from __future__ import annotations

import asyncio
from typing import Any

from redis import asyncio as redis
from saq import Worker
from saq.queue.redis import RedisQueue

from bench.peers import Turn, take


async def run(turn: Turn) -> None:
    async def no_op(_context: dict[str, Any]) -> None:
        turn.count()

    queue = RedisQueue(redis.Redis.from_url(turn.url), max_concurrent_ops=64)
    worker = Worker(queue, [("no_op", no_op)], concurrency=64)
    working = asyncio.create_task(worker.start())
    await turn.produce(lambda: queue.enqueue("no_op", ttl=-1), tasks=16)
    await turn.end()
    working.cancel()


if __name__ == "__main__":
    take(run)
