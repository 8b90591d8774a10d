"""What this process does for webhooks, as arq sees it: one job for each endpoint that is due, one at a time in all.

arq is trusted with nothing but that: a job that it forgets, repeats or gives up is put into the queue again by the next
sweep, as long as the bus has deliveries that are due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import structlog
from arq.worker import func

from api.outgoing import Limits, Outgoing
from api.tasks.arqmarks import MARK_S, marked
from api.tasks.arqworker import Trade, arq_link
from api.tasks.webhooks.pace import WIDEST, Paces
from api.tasks.webhooks.turn import Turn
from shared.bus import Bus
from shared.errors import BusUnavailable
from shared.settings import TasksSettings

LIMITS = Limits(calls=0, calls_per_host=0, lookups=64, idle_s=2.0)
"""Of all calls. Their number is bounded by the turns at a time, and a host that many endpoints share must not be a gate
that one of them can block. Connections are dropped before a receiver's patience with idle ones ends."""

MOST_TURNS = 256
"""Endpoints that are served at once: those that hang take a place for as long as an answer may take."""
MOST_CALLS = MOST_TURNS * WIDEST

SWEEP_EVERY_S = 0.25
SWEPT_AT_ONCE = 1000
"""Endpoints that one look finds."""
OFFER_AGAIN_S = 1.0
"""After which an endpoint that is still due is offered again, unless it is being served here."""
FORGOTTEN_S = 600
"""After which arq drops a job that nobody took. It would be a day, and may be short: jobs are made again."""

POLL_S = 0.1

log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_courier(settings: TasksSettings, bus: Bus) -> AsyncIterator[Courier]:
    async with Outgoing.open(settings.allow_hosts, limits=LIMITS) as outgoing:
        yield Courier(bus, outgoing, timeout_s=settings.webhook_timeout_s)


class Courier:
    def __init__(self, bus: Bus, outgoing: Outgoing, *, timeout_s: float) -> None:
        """`timeout_s`: for one receiver's answer."""
        self._bus = bus
        self._outgoing = outgoing
        self._timeout_s = timeout_s
        self._paces = Paces()
        self._offered: dict[str, float] = {}
        """Endpoints that were put into arq's queue, and when, on the monotonic clock."""
        self._served: set[str] = set()

    async def sweep(self, settings: TasksSettings) -> None:
        """Puts endpoints that are due into arq's queue, for ever. Raises BusUnavailable, and what arq's link raises."""
        async with arq_link(settings, "tasks-webhooks") as redis:
            while True:
                for endpoint_id in self._to_offer(await self._bus.webhooks.due(SWEPT_AT_ONCE)):
                    await redis.enqueue_job(
                        deliver.__name__,
                        endpoint_id,
                        _job_id=f"{settings.namespace}:deliver:{endpoint_id}",  # the same while it is queued or runs
                        _queue_name=TRADE.queue(settings.namespace),
                        _expires=timedelta(seconds=FORGOTTEN_S),
                    )
                await asyncio.sleep(SWEEP_EVERY_S)

    async def serve(self, endpoint_id: str) -> None:
        """A turn of one endpoint. Raises OSError when this machine has no room for another call."""
        self._served.add(endpoint_id)
        try:
            await Turn(self._bus, self._outgoing, self._paces, endpoint_id, timeout_s=self._timeout_s).run()
        except BusUnavailable as error:
            log.warning("deliveries wait for the server", endpoint=endpoint_id, reason=error.message)
        finally:
            self._served.discard(endpoint_id)
            self._offered.pop(endpoint_id, None)

    def _to_offer(self, due: Sequence[str]) -> list[str]:
        now = time.monotonic()
        self._offered = {each: at for each, at in self._offered.items() if now - at < OFFER_AGAIN_S}
        offers = [each for each in due if each not in self._offered and each not in self._served]
        self._offered |= dict.fromkeys(offers, now)
        return offers


async def deliver(ctx: dict[str, Any], endpoint_id: str) -> None:
    courier: Courier = ctx["courier"]
    async with marked(ctx):
        await courier.serve(endpoint_id)


TRADE = Trade(name="webhooks", functions=(func(deliver),), max_jobs=MOST_TURNS, mark_s=MARK_S, poll_s=POLL_S)
