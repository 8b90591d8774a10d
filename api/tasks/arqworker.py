"""arq's worker as we run it: several side by side, each with a queue of its own, so that no work waits for another's.

Knows nothing of what is done. What arq is not trusted with is in here: pickle, kept results, signals, its own closing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from arq.connections import ArqRedis
from arq.cron import CronJob
from arq.worker import Function, Worker

from shared.bus.taskpool import task_pool
from shared.settings import TasksSettings

JOB_TIMEOUT_S = 30
"""arq blocks a dead worker's job for the longest timeout of all functions of a worker: most are short."""
MAX_TRIES = 1_000_000
"""Of a job that was cut off: arq would say that it is given up, and what it is for never is."""
HEALTH_EVERY_S = 30
CANCEL_EVERY_S = 0.2
POLL_S = 0.5

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Trade:
    """What one worker does."""

    name: str = ""
    """Of its queue; housekeeping's has none."""
    functions: tuple[Function, ...] = ()
    cron_jobs: tuple[CronJob, ...] = ()
    timeout_s: int = JOB_TIMEOUT_S
    max_jobs: int = 4
    mark_s: int | None = None
    """For which a job that nobody works on any more stays marked as under way, where its function renews the mark
    (`arqmarks`). None: for as long as arq does, 10 s more than the longest timeout."""
    poll_s: float = POLL_S
    """Between two looks into the queue: what is put there waits half as long on average."""

    def queue(self, namespace: str) -> str:
        return f"{namespace}:tasks:{self.name}" if self.name else f"{namespace}:tasks"


async def work(settings: TasksSettings, trade: Trade, ctx: dict[str, Any]) -> None:
    """A worker until it falls. Its functions get `ctx`, besides what arq puts there."""
    async with arq_link(settings, f"tasks-arq-{trade.name}".rstrip("-")) as redis:
        worker = make_worker(redis, settings.namespace, trade, ctx)
        log.info("ready", cron=[job.name for job in worker.cron_jobs], **({"of": trade.name} if trade.name else {}))
        main = asyncio.create_task(worker.main())
        try:
            await asyncio.wait((main,))  # not `await main`: a cancel of ours would go to it, where it may be lost
            await main
        finally:
            await _done(asyncio.create_task(_end(main, worker)))


@asynccontextmanager
async def arq_link(settings: TasksSettings, name: str) -> AsyncIterator[ArqRedis]:
    """To put jobs into queues, or to work them off. `name` is shown in the server's CLIENT LIST."""
    pool = task_pool(settings, name=name)
    try:
        yield ArqRedis(pool, **_serializers())
    finally:
        await pool.disconnect(inuse_connections=True)


def make_worker(redis: ArqRedis, namespace: str, trade: Trade, ctx: dict[str, Any]) -> Worker:
    worker = Worker(
        functions=trade.functions,
        cron_jobs=trade.cron_jobs,
        redis_pool=redis,
        queue_name=trade.queue(namespace),
        health_check_key=f"{trade.queue(namespace)}:health",
        health_check_interval=HEALTH_EVERY_S,
        handle_signals=False,  # ours: arq's would end it without the other parts
        keep_result=0,  # a kept result would refuse the same job id for its life
        job_timeout=trade.timeout_s,
        max_jobs=trade.max_jobs,
        max_tries=MAX_TRIES,
        poll_delay=trade.poll_s,
        log_results=False,
        ctx={**ctx, "queue": trade.queue(namespace)},
        **_serializers(),
    )
    if trade.mark_s is not None:
        worker.in_progress_timeout_s = trade.mark_s
    return worker


async def _end(main: asyncio.Task[None], worker: Worker) -> None:
    """Cancel all that arq started, and again what goes on: a cancel is lost when it meets a connection being made.

    arq's own `close` waits for ever then. A job that is cut off is run again by the next worker.
    """
    tasks = {main, *worker.tasks.values()}
    while tasks:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CANCEL_EVERY_S)
        tasks = {task for task in (main, *worker.tasks.values()) if not task.done()}
    for task in (main, *worker.tasks.values()):
        if not task.cancelled():
            task.exception()  # looked at: why it fell is said by whoever waited for it


async def _done(ending: asyncio.Task[None]) -> None:
    """Waits for it, however often this is cancelled meanwhile: what is still at work would outlive us."""
    is_cancelled = False
    while not ending.done():
        try:
            await asyncio.wait((ending,))
        except asyncio.CancelledError:
            is_cancelled = True
    ending.result()
    if is_cancelled:
        raise asyncio.CancelledError


def _serializers() -> dict[str, Callable[[Any], Any]]:
    """JSON in place of arq's pickle, with which whoever can write to Redis could run code here. What arq says of a job
    that it gives up has an exception in it: nobody reads that, so its text will do."""
    return {"job_serializer": lambda value: json.dumps(value, default=str).encode(), "job_deserializer": json.loads}
