"""taskiq over a Redis stream, its broker that acknowledges; without results."""

from __future__ import annotations

import asyncio

from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.peers import Turn, take


async def run(turn: Turn) -> None:
    broker = RedisStreamBroker(turn.url, consumer_id="0", max_connection_pool_size=128)

    @broker.task
    async def no_op() -> None:
        turn.count()

    await broker.startup()
    working = asyncio.create_task(run_receiver_task(broker, max_async_tasks=100, max_prefetch=100))
    await turn.produce(no_op.kiq, tasks=16)
    await turn.end()
    working.cancel()


if __name__ == "__main__":
    take(run)
