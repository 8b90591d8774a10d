"""Finds batches whose time has come, and has each worked on as a job of an arq worker of its own. One place for how
batches reach arq: the bus alone knows which are due, and who holds one, so a job that is lost or comes twice does no
harm."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

from arq.worker import func

from api.images import Images
from api.tasks.arqmarks import MARK_S, marked
from api.tasks.arqworker import Trade, arq_link, work
from api.tasks.batches.holding import Holder
from api.tasks.batches.step import Work
from shared.bus import Bus
from shared.settings import TasksSettings
from shared.store import Store

EVERY_S = 0.25
AT_ONCE = 100
"""Batches that are found in one look."""

AGAIN_S = 15.0
"""Until a batch is asked for anew that nobody has taken: the job may have been lost."""

LEAST_LEASE_S = 2.0
"""Shorter leases would run out while a large answer is written."""

TIMEOUT_S = 3600
"""Of a step. All but the validation of a large file take a second or two, and that a minute."""

MAX_JOBS = 16

STEP = "step_of_batch"


def trade() -> Trade:
    step = func(_step, name=STEP)
    return Trade("batches", functions=(step,), timeout_s=TIMEOUT_S, max_jobs=MAX_JOBS, mark_s=MARK_S, poll_s=0.1)


async def work_on_batches(settings: TasksSettings, bus: Bus, store: Store, images: Images) -> None:
    """Until arq's worker falls."""
    async with Holder(bus) as holder:
        ctx = {"bus": bus, "holder": holder, "work": Work(bus, store, images, settings), "lease_s": settings.lease_s}
        await work(settings, trade(), ctx)


async def find_batches(settings: TasksSettings, bus: Bus) -> None:
    """For ever. Raises BusUnavailable, and what arq raises."""
    asked_at: dict[tuple[str, int], float] = {}
    async with arq_link(settings, "tasks-sweep-batches") as redis:
        queue = trade().queue(settings.namespace)
        while True:
            now = time.monotonic()
            due = await bus.batches.due(AT_ONCE)
            asked_at = {each: asked_at[each] for each in due if now - asked_at.get(each, -AGAIN_S) < AGAIN_S}
            for each in due:
                if each not in asked_at:
                    # Several who find it at once say the same.
                    job_id = f"batch:{each.batch_id}:{each.epoch}:{int(time.time() / AGAIN_S)}"
                    expires = timedelta(seconds=TIMEOUT_S)
                    await redis.enqueue_job(STEP, *each, _job_id=job_id, _queue_name=queue, _expires=expires)
                    asked_at[each] = now
            await asyncio.sleep(EVERY_S)


async def _step(ctx: dict[str, Any], batch_id: str, epoch: int) -> None:
    bus: Bus = ctx["bus"]
    holder: Holder = ctx["holder"]
    work: Work = ctx["work"]
    # Marked for seconds, since what killed processes leave is in the way: arq looks no further than at a hundred jobs.
    async with marked(ctx):
        if hold := await bus.batches.hold(batch_id, epoch, max(LEAST_LEASE_S, ctx["lease_s"])):
            await holder.work(hold, work.step(hold))
