"""Work on a batch for as long as one holds it: the hold is renewed beside the work, which ends when the hold is lost.

Knows nothing of what is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

import structlog

from shared.bus import Bus, Hold
from shared.errors import BusUnavailable, Unavailable, UnknownFile

RENEWALS = 3
"""In a lease: two may be late."""

AFTER_FAULT_S = 5.0
"""Until a batch is looked at again with which something went wrong."""

LONGEST_WAIT_S = 15.0
"""Until one is looked at again that something keeps from going on: clients may be told to wait longer."""

LEAVING_S = 2.0
"""That letting go may take when the process is told to leave; else the leases run out."""

log = structlog.get_logger(__name__)


class Rest(NamedTuple):
    """When a batch is looked at again."""

    after_s: float
    n_ended: int = 0
    """Sooner when so many lines wait to be collected; 0: however many."""


class Holder:
    """Has its holds let go before it is closed."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._letting_go: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._letting_go:
            await asyncio.wait(self._letting_go, timeout=LEAVING_S)

    async def work(self, hold: Hold, work: Coroutine[None, None, Rest]) -> None:
        """Does the work, and lets the batch rest as it says. Work that is cut off has the batch taken up at once, work
        that fails after a while; work whose hold is lost is cut off."""
        working = asyncio.create_task(work)
        renewing = asyncio.create_task(self._renew(hold))
        rest = Rest(0.0)
        try:
            await asyncio.wait((working, renewing), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                rest = _rest_after(hold, working)
        finally:
            letting_go = asyncio.create_task(self._let_go(hold, rest, working, renewing))
            self._letting_go.add(letting_go)
            letting_go.add_done_callback(self._letting_go.discard)
            await asyncio.shield(letting_go)

    async def _renew(self, hold: Hold) -> None:
        """Returns when the hold is lost, or nobody could be told of it for a lease."""
        loop = asyncio.get_running_loop()
        renewed_at = loop.time()
        while loop.time() - renewed_at < hold.lease_s:
            await asyncio.sleep(hold.lease_s / RENEWALS)
            with suppress(BusUnavailable):
                asked_at = loop.time()
                if not await self._bus.batches.renew(hold):
                    log.warning("somebody else took a batch over", batch=hold.batch_id)
                    return
                renewed_at = asked_at

    async def _let_go(self, hold: Hold, rest: Rest, *tasks: asyncio.Task[object]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(BusUnavailable):  # then it is taken up when the lease is over
            await self._bus.batches.rest(hold, rest.after_s, n_ended=rest.n_ended)


def _rest_after(hold: Hold, working: asyncio.Task[Rest]) -> Rest:
    if working.cancelled():
        return Rest(0.0)
    match working.exception():
        case None:
            return working.result()
        case Unavailable() as error:
            log.warning("a batch waits", batch=hold.batch_id, reason=error.message)
            return Rest(min(error.retry_after_s, LONGEST_WAIT_S))
        case UnknownFile():  # whoever reads another store by mistake must not give lines up
            advice = "give all processes the same --store-url; it goes on when what it needs is there again"
            log.error("what a batch needs is not in the store", batch=hold.batch_id, advice=advice)
            return Rest(AFTER_FAULT_S)
        case error:  # the border: whatever it was, other batches go on, and this one is tried again
            log.error("a step of a batch failed", batch=hold.batch_id, exc_info=error)
            return Rest(AFTER_FAULT_S)
