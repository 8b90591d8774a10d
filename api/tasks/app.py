"""The tasks process: arq's worker with its cron jobs, and the outbox bridge, each started again when it falls.

arq's worker dies with its connection; `stand_up_again` is why a restart of Redis needs nobody's hand.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import structlog
import uvloop
from arq.connections import ArqRedis
from arq.worker import Worker

from api.tasks import janitor, outbox
from shared import telemetry
from shared.bus import Bus, open_bus
from shared.bus.taskpool import task_pool
from shared.errors import BusUnavailable
from shared.settings import ConfigError, TasksSettings
from shared.store import open_store

PROG = "slotstream tasks"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
STEADY_S = 30.0
"""Work that went on for so long is started again at once when it falls."""
JOB_TIMEOUT_S = 30
"""arq blocks a dead worker's job for the longest timeout of all functions: all are short."""
HEALTH_EVERY_S = 30
CANCEL_EVERY_S = 0.2

log = structlog.get_logger(__name__)


def main(argv: Sequence[str]) -> int:
    settings = TasksSettings.from_command_line(
        argv, prog=PROG, description="Housekeeping of the queue: overdue jobs, empty lanes, notices of endings."
    )
    telemetry.configure(settings.log_level, settings.log_format, "tasks")
    logging.getLogger("arq").setLevel(logging.WARNING)  # it tells of every cron job, several times a minute
    try:
        uvloop.run(run(settings))
    except ConfigError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    return 0


async def run(settings: TasksSettings) -> None:
    """Work until SIGTERM or SIGINT. Raises ConfigError when the server or its URL will not do."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with (
        open_store(settings.store_url.get_secret_value()) as store,
        open_bus(settings, name="tasks", store=store if settings.shared_store_url else None) as bus,
    ):
        work = asyncio.create_task(_work(settings, bus))
        until_stopped = asyncio.create_task(stopped.wait())
        await asyncio.wait((work, until_stopped), return_when=asyncio.FIRST_COMPLETED)
        until_stopped.cancel()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
    log.info("left")


async def _work(settings: TasksSettings, bus: Bus) -> None:
    """For ever. Raises ConfigError when a server will not do."""
    task_pool(settings, name="tasks-arq")  # here, or a mistake in its URL would be tried again and again
    await bus.reach()
    async with asyncio.TaskGroup() as parts:
        parts.create_task(stand_up_again("arq", functools.partial(run_arq, settings, bus)))
        parts.create_task(stand_up_again("outbox", functools.partial(outbox.bridge, bus)))


async def stand_up_again(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` for ever: when it falls, say why and start it again, later and later while it goes on falling."""
    pause_s = FIRST_PAUSE_S
    while True:
        started = time.monotonic()
        try:
            await work()
        except BusUnavailable as error:
            log.warning("waiting for the server", part=name, reason=error.message)
        except Exception as error:  # the border: whatever it was, housekeeping must go on
            log.warning("fell and is started again", part=name, reason=str(error) or type(error).__name__)
        if time.monotonic() - started > STEADY_S:
            pause_s = FIRST_PAUSE_S
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


async def run_arq(settings: TasksSettings, bus: Bus) -> None:
    """arq's worker until it falls."""
    pool = task_pool(settings, name="tasks-arq")
    try:
        worker = make_worker(ArqRedis(pool, **_serializers()), settings, bus)
        log.info("ready", cron=[job.name for job in worker.cron_jobs])
        main = asyncio.create_task(worker.main())
        try:
            await asyncio.wait((main,))  # not `await main`: a cancel of ours would go to it, where it may be lost
            await main
        finally:
            await _end(main, worker)
    finally:
        await pool.disconnect(inuse_connections=True)


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


def make_worker(redis: ArqRedis, settings: TasksSettings, bus: Bus) -> Worker:
    return Worker(
        functions=[],
        cron_jobs=janitor.cron_jobs(settings.namespace),
        redis_pool=redis,
        queue_name=f"{settings.namespace}:tasks",
        health_check_key=f"{settings.namespace}:tasks:health",
        health_check_interval=HEALTH_EVERY_S,
        handle_signals=False,  # ours: arq's would end it without the bridge
        keep_result=0,  # a kept result would refuse the same job id for its life
        job_timeout=JOB_TIMEOUT_S,
        max_jobs=4,
        log_results=False,
        ctx={"bus": bus},
        **_serializers(),
    )


def _serializers() -> dict[str, Callable[[Any], Any]]:
    """JSON in place of arq's pickle, with which whoever can write to Redis could run code here."""
    return {"job_serializer": lambda value: json.dumps(value).encode(), "job_deserializer": json.loads}
