"""A turn of one endpoint: its due deliveries are sent, several side by side, for some seconds.

Nothing is remembered here: an attempt counts when the bus has noted it. Dies this process between the two, the delivery
is sent again, with the same id and bytes. Knows no arq.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque

import structlog

from api.outgoing import Outgoing
from api.tasks.webhooks.pace import Paces
from api.webhooks.attempt import attempt
from api.webhooks.schedule import consequence
from shared.bus import Bus
from shared.webhooks import Delivery, DeliveryStatus, Endpoint

TURN_S = 3.0
"""After which nothing new is begun, so that others have their turn. With the longest time for an answer, a turn still
ends before arq would end it."""
AT_ONCE = 100
"""Deliveries that are read from the bus in one go."""

log = structlog.get_logger(__name__)


class Turn:
    def __init__(self, bus: Bus, outgoing: Outgoing, paces: Paces, endpoint_id: str, *, timeout_s: float) -> None:
        """`timeout_s`: for one answer."""
        self._bus = bus
        self._outgoing = outgoing
        self._paces = paces
        self._endpoint_id = endpoint_id
        self._timeout_s = timeout_s
        self._until = time.monotonic() + TURN_S
        self._is_cut_short = False
        """The endpoint is to be left alone from here on."""

    async def run(self) -> None:
        """Raises BusUnavailable, and OSError when this machine has no room for another call: what was not noted is due
        again."""
        while not self._is_over and (due := await self._bus.webhooks.take(self._endpoint_id, AT_ONCE)):
            await self._send(deque(due))

    @property
    def _is_over(self) -> bool:
        return self._is_cut_short or time.monotonic() > self._until

    async def _send(self, waiting: deque[Delivery]) -> None:
        """As many at once as the endpoint takes, until none is left or the turn is over."""
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                while waiting and not self._is_over and len(under_way) < self._paces.width(self._endpoint_id):
                    under_way.add(asyncio.create_task(self._try(waiting.popleft())))
                if not under_way:
                    return
                ended, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _try(self, delivery: Delivery) -> None:
        """One attempt, with the address and the secrets that the endpoint has now."""
        endpoint = await self._bus.webhooks.record(self._endpoint_id)
        if endpoint is None or endpoint.disabled_at is not None:
            self._is_cut_short = True  # the next `take` settles what waits
            return
        tried = await attempt(self._outgoing, endpoint, delivery, timeout_s=self._timeout_s)
        told = consequence(
            tried.attempt, delivery, endpoint, retry_after=tried.retry_after, luck=random.uniform(-1.0, 1.0)
        )
        await self._bus.webhooks.attempted(
            delivery.id,
            endpoint.id,
            tried.attempt,
            status=told.status,
            after_s=told.after_s,
        )
        if told.status is DeliveryStatus.DELIVERED:
            self._paces.widen(endpoint.id)
            return
        log.info(
            "not delivered",
            delivery=delivery.id,
            endpoint=endpoint.id,
            status=tried.attempt.status_code,
            reason=tried.attempt.error,
            next_in_s=told.after_s and round(told.after_s),
        )
        if told.why_disabled is not None:
            await self._disable(endpoint, told.why_disabled)
        elif told.rest_s:
            self._is_cut_short = True
            self._paces.narrow(endpoint.id)
            await self._bus.webhooks.rest(endpoint.id, told.rest_s)
        elif tried.attempt.status_code is None:
            self._paces.narrow(endpoint.id)

    async def _disable(self, endpoint: Endpoint, reason: str) -> None:
        self._is_cut_short = True
        log.warning("webhook endpoint disabled", endpoint=endpoint.id, tenant=endpoint.tenant, reason=reason)
        await self._bus.webhooks.disable(endpoint.id, reason)
