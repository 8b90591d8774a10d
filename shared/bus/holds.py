"""Who works on a batch, and when it is looked at next. Knows nothing of lines.

A batch is due at a time of its own. Who takes it holds it for a lease that it renews, and lets it rest when a step is
done; a holder that falls silent is noticed when its lease is over. What it writes carries its token, which is good for
nothing once somebody else holds the batch.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import NamedTuple

from shared.bus.batchrecord import TRIES, BatchRecords
from shared.bus.script import run, script
from shared.ids import Kind, partition_in


class Due(NamedTuple):
    """A batch that somebody should look at."""

    batch_id: str
    epoch: int
    """Raised with every hold: this one can be taken once."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The right to change a batch. `token` is unlike all others'."""

    batch_id: str
    token: str
    lease_s: float
    now: float
    """Unix seconds on the bus's clock, when it was taken."""

    @property
    def mark(self) -> str:
        """Of segments that are made under it: hex."""
        return self.token[:8]


class Holds(BatchRecords):
    async def due(self, limit: int = 100) -> list[Due]:
        """Batches that nobody is at work on and whose time has come, those first that wait longest. One that is named
        is named again until somebody holds it. Raises BusUnavailable."""

        async def look(partition: int) -> list[tuple[float, Due]]:
            names = (f"{self._keys.prefix(partition)}attention",)
            call = script("batches/due").call(names, (self._keys.prefix(partition), limit))
            [rows] = await run(self._link, script("batches/due"), [call], tries=TRIES)
            return [(float(since_ms), Due(batch_id.decode(), epoch)) for batch_id, epoch, since_ms in rows]

        found = await asyncio.gather(*map(look, range(self._keys.partitions)))
        return [due for _, due in sorted((row for rows in found for row in rows), key=lambda row: row[0])][:limit]

    async def hold(self, batch_id: str, epoch: int, lease_s: float) -> Hold | None:
        """Takes a batch that was due at this epoch. None: somebody else was first, or it is not due any more.

        Raises BusUnavailable: it may be held then, and is due again when the lease is over.
        """
        token = secrets.token_hex(12)
        arguments = (batch_id, token, epoch, round(lease_s * 1000))
        now_ms = await self._say("hold", batch_id, (self._attention(batch_id),), arguments)
        return Hold(batch_id, token, lease_s, now_ms / 1000) if now_ms is not None else None

    async def renew(self, hold: Hold) -> bool:
        """Another lease from now on. False: somebody else has the batch, or it has ended. Raises BusUnavailable."""
        arguments = (hold.batch_id, hold.token, round(hold.lease_s * 1000))
        return bool(await self._say("renew", hold.batch_id, (self._attention(hold.batch_id),), arguments))

    async def rest(self, hold: Hold, after_s: float, *, n_ended: int = 0) -> None:
        """Lets a batch go. It is due again after that time, five minutes at the most; at once when it was cancelled
        since it was taken; with `n_ended` as soon as so many of its lines have ended and are not collected.

        Raises BusUnavailable.
        """
        arguments = (hold.batch_id, hold.token, round(after_s * 1000), n_ended)
        await self._say("rest", hold.batch_id, (self._attention(hold.batch_id),), arguments)

    def _attention(self, batch_id: str) -> str:
        return f"{self._keys.prefix(partition_in(batch_id, Kind.BATCH))}attention"
