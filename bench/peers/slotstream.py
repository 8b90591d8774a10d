"""Ours: the bus's `Queue`, with a worker's wake-ups, claims and endings, and no model."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from pydantic import SecretStr

from bench.peers import Turn, take
from shared.bus import Bus, Wanted, open_bus
from shared.events import Finished
from shared.jobs import Completion, Job, Lane
from shared.settings import BusSettings

MODEL, REQUEST, DONE = "none", Completion(prompts=("",), n_predict=0), Finished(status="succeeded")
PRODUCERS, CLAIMERS, SLOTS = 128, 4, 64
POLL_S = 0.25
"""As a worker does: a wake-up may be lost."""


async def run(turn: Turn) -> None:
    async with open_bus(BusSettings(redis_url=SecretStr(turn.url)), name="bench") as bus, asyncio.TaskGroup() as group:
        news = asyncio.Event()
        group.create_task(_listen(bus, news))
        for number in range(CLAIMERS):
            group.create_task(_work(bus, turn, f"worker-{number}", news))

        async def enqueue() -> None:
            job = Job(id=bus.queue.new_job_id(), model=MODEL, request=REQUEST, lane=Lane.BULK)
            await bus.queue.enqueue(job)

        await turn.produce(enqueue, tasks=PRODUCERS)
        await turn.end()


async def _listen(bus: Bus, news: asyncio.Event) -> None:
    async for _ in bus.queue.wakes("worker-0", MODEL):
        news.set()


async def _work(bus: Bus, turn: Turn, name: str, news: asyncio.Event) -> None:
    while True:
        news.clear()
        claimed = await bus.queue.claim(name, MODEL, Wanted(0, 0, SLOTS))
        if not claimed:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await news.wait()
        for is_ended in await asyncio.gather(*(bus.queue.finish(each.lease, DONE, 1) for each in claimed)):
            assert is_ended
            turn.count()


if __name__ == "__main__":
    take(run)
