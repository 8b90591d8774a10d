"""Cron jobs that keep the queue tidy. Each may run at any time, twice at once, or not for a while."""

from __future__ import annotations

from typing import Any

import structlog
from arq.cron import CronJob, cron

from shared.bus import Bus
from shared.errors import BusUnavailable, StoreUnavailable

REAP_EVERY_S = 5
SWEEP_EVERY_MIN = 10

log = structlog.get_logger(__name__)


async def reap(ctx: dict[str, Any]) -> None:
    """End overdue jobs that nobody holds, and clear away silent consumers and empty lanes."""
    bus: Bus = ctx["bus"]
    try:
        n_ended = await bus.queue.reap()
    except BusUnavailable as error:
        log.warning("not reaped", reason=error.message)
        return
    if n_ended:
        log.info("reaped", ended=n_ended)


async def sweep(ctx: dict[str, Any]) -> None:
    """Delete from the store what lies there of jobs that are gone."""
    bus: Bus = ctx["bus"]
    try:
        n_deleted = await bus.annex.sweep()
    except (BusUnavailable, StoreUnavailable) as error:
        log.warning("not swept", reason=error.message)
        return
    if n_deleted:
        log.info("swept", objects=n_deleted)


def cron_jobs(namespace: str) -> list[CronJob]:
    """The names carry the namespace: arq's keys do not, and two systems on one server would skip each other's."""
    every = set(range(0, 60, REAP_EVERY_S))
    now_and_then = set(range(0, 60, SWEEP_EVERY_MIN))
    return [
        cron(reap, name=f"{namespace}:reap", second=every, run_at_startup=True, max_tries=1, keep_result=0),
        cron(sweep, name=f"{namespace}:sweep", minute=now_and_then, second=7, max_tries=1, keep_result=0),
    ]
