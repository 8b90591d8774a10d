"""The bridge from the outbox to whoever tells of endings. A row is acknowledged only after all of them took it.

A teller is a file of its own with a function that takes rows; it may be given the same row again, after a crash or
beside another tasks process, and must make the same of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from api.tasks.webhooks import teller
from shared.bus import Bus
from shared.bus.outbox import OutboxRow

ROWS = 100
IDLE_S = 0.25
"""Between two looks into an empty outbox."""

Teller = Callable[[Bus, Sequence[OutboxRow]], Awaitable[None]]

TELLERS: tuple[Teller, ...] = (teller.tell,)


async def bridge(bus: Bus, tellers: Sequence[Teller] = TELLERS) -> None:
    """Take rows for ever. Raises BusUnavailable, and whatever a teller raises: then its rows come again."""
    while True:
        rows = await bus.outbox.read(ROWS)
        if not rows:
            await asyncio.sleep(IDLE_S)
            continue
        for tell in tellers:
            await tell(bus, rows)
        await bus.outbox.acknowledge(rows)
