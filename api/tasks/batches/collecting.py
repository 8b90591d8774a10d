"""Makes segments of lines that have ended, and of those that will not be begun any more. Knows not what a line asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

from api.tasks.batches.making import beside
from api.tasks.batches.pace import Pace
from api.tasks.batches.plan import PlanText, read_at, read_on, read_plan_text
from api.tasks.batches.records import said_of, unfed, why_stopped
from api.tasks.batches.segments import Draft
from shared.batches import Batch
from shared.bus import MAX_COLLECTED, Bus, EndedLine, Hold
from shared.errors import UnknownFile
from shared.jobs import JobRecord, JobStatus
from shared.store import Store

AT_ONCE = 16
"""Lines whose results are fetched together: how many bytes they are shows when they are here."""

TURN_S = 1.0
"""After which others have their turn."""


class Collecting:
    def __init__(self, bus: Bus, store: Store) -> None:
        self._bus, self._store = bus, store
        self.pace = Pace()

    async def run(self, hold: Hold, batch: Batch, now: float) -> bool:
        """Collects what has ended, if it is time to. True: there is more, and another turn may go on at once. `now` is
        the bus's. Raises UnknownFile, StoreUnavailable and BusUnavailable."""
        if not batch.n_in_flight:
            return False
        ended = await self._bus.batches.ended(batch.id, MAX_COLLECTED)
        if not ended and self.pace.is_time_to_count(batch.id):
            lost = await self._bus.batches.lost(batch.id)
            ended = [EndedLine(job_id, None) for job_id in lost[:MAX_COLLECTED]]
        if not ended or not (len(ended) >= self.pace.enough(batch) or self.pace.is_time_to_collect(batch, now)):
            return False
        if any(line.status is JobStatus.EXPIRED for line in ended):
            # Said before they are collected: when all of them have expired, nothing else would tell it from its end.
            await self._bus.batches.finalize(hold, "expired")
        draft = await self._draft(batch, ended)
        self.pace.collected(batch.id)
        return await draft.keep(self._bus, self._store, hold, batch.n_segments)

    async def give_up(self, hold: Hold, batch: Batch) -> bool:
        """Records those lines that are not on their way yet and will not be any more. True: there are more of them.
        Raises the same."""
        draft, until = Draft(), time.monotonic() + TURN_S
        why = why_stopped(batch)
        async with aclosing(read_on(self._store, batch.id, batch.plan_offset)) as texts:
            async for text in texts:
                planned = await beside(len(text.text), partial(read_plan_text, text.text))
                draft.add_unfed(text.start, text.stop, unfed(batch, planned, why))
                if draft.is_full or time.monotonic() > until:
                    break
                if len(draft) % AT_ONCE == 0:
                    await asyncio.sleep(0)
        return await draft.keep(self._bus, self._store, hold, batch.n_segments)

    async def _draft(self, batch: Batch, ended: Sequence[EndedLine]) -> Draft:
        """Of as many as make a segment."""
        draft, until = Draft(), time.monotonic() + TURN_S
        places = await self._bus.batches.places(batch.id, [line.job_id for line in ended])
        begun = sorted((place, line) for place, line in zip(places, ended, strict=True) if place is not None)
        async with aclosing(read_at(self._store, batch.id, [place for place, _ in begun])) as texts:
            for first in range(0, len(begun), AT_ONCE):
                lines = [line for _, line in begun[first : first + AT_ONCE]]
                for line, job in zip(lines, await asyncio.gather(*map(self._job, lines)), strict=True):
                    draft.add(line.job_id, await said_of(batch, await _next(texts), line, job))
                    if draft.is_full:
                        return draft
                if time.monotonic() > until:
                    break
        return draft

    async def _job(self, line: EndedLine) -> JobRecord | None:
        return None if line.status is None else await self._bus.queue.record(line.job_id)


async def _next(texts: AsyncGenerator[PlanText, None]) -> PlanText:
    try:
        return await anext(texts)
    except StopAsyncIteration:
        raise UnknownFile("The plan of a batch is shorter than it was.") from None
