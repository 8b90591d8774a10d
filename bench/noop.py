"""A worker without a model, as a process of its own: whatever it claims is done at once.

`python -m bench.noop`, told by variables where the queue and the store are, as any role is. It says that it serves the
model `none`, whose every answer is one word; an input to embed becomes a vector of 384 numbers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

import numpy as np
import uvloop

from shared.bus import Bus, Claimed, ModelCard, Wanted, WorkerState, open_bus
from shared.events import Answer, Finished, Part, StopType, Vector
from shared.jobs import Embedding, Generation, Request
from shared.settings import WorkerSettings
from shared.store import open_store

MODEL = "none"
SLOTS = 64
POLL_S = 0.25
"""As a worker does: a wake-up may be lost."""
ANNOUNCE_EVERY_S = 0.5
WIDTH = 384
"""Numbers of a vector."""

_VECTOR = np.full(WIDTH, WIDTH**-0.5, dtype=np.float32)


async def work(settings: WorkerSettings) -> None:
    """For ever."""
    name = f"noop-{os.getpid()}"
    async with AsyncExitStack() as opened, asyncio.TaskGroup() as tasks:
        store = None
        if settings.shared_store_url:
            store = await opened.enter_async_context(open_store(settings.shared_store_url))
        bus = await opened.enter_async_context(open_bus(settings, name=name, store=store))
        await bus.reach()
        news = asyncio.Event()
        tasks.create_task(_announce(bus, name))
        tasks.create_task(_listen(bus, name, news))
        while True:
            news.clear()
            claimed = await bus.queue.claim(name, MODEL, Wanted(0, SLOTS, SLOTS, inputs=SLOTS, bulk_inputs=SLOTS))
            await asyncio.gather(*(_finish(bus, name, each) for each in claimed))
            if not claimed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await news.wait()


async def _finish(bus: Bus, name: str, claimed: Claimed) -> None:
    finished = Finished(status="succeeded", parts=tuple(_parts(claimed.job.request)), worker=name)
    await bus.queue.finish(claimed.lease, finished, claimed.n_events + 1)


def _parts(request: Request) -> Sequence[Part]:
    match request:
        case Generation():
            return [
                Answer(index=index, text="ok", ids=(1,), prompt="", prompt_tokens=1, stop_type=StopType.EOS, seed=index)
                for index in range(request.n_sequences)
            ]
        case Embedding(inputs=inputs):
            return [Vector.of(index, _VECTOR, prompt_tokens=1) for index in range(len(inputs))]
    raise AssertionError(f"nobody asks this worker for {request.kind}")


async def _announce(bus: Bus, name: str) -> None:
    sizes = dict.fromkeys(("n_ctx", "n_ctx_train", "n_vocab", "n_embd", "n_params", "size"), 1)
    started_at = time.time()
    while True:
        state = WorkerState(
            id=name,
            model=ModelCard.model_validate({"name": MODEL, "path": MODEL, "pooling": "mean", **sizes}),
            status="ready",
            started_at=started_at,
            slots=(),
            n_slots=SLOTS,
            host="here",
            pid=os.getpid(),
            build="none",
            stores=tuple(bus.annex.marks),
        )
        await bus.presence.announce(state)
        await asyncio.sleep(ANNOUNCE_EVERY_S)


async def _listen(bus: Bus, name: str, news: asyncio.Event) -> None:
    async for _ in bus.queue.wakes(name, MODEL):
        news.set()


if __name__ == "__main__":
    uvloop.run(work(WorkerSettings.load()))
