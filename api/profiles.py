"""What workers have told of their models, kept as long as they live: who asks again and again costs nothing.

Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from api.fleet import Fleet
from api.schemas.answers import failure_of
from shared.bus import Bus
from shared.errors import BusUnavailable, NotReady
from shared.events import Finished, Properties
from shared.jobs import GetProperties, Job

ANSWER_S = 5.0
"""A worker answers such a job beside its decodes, within milliseconds; one that takes longer will not answer at all."""


class Profiles:
    """For the event loop alone."""

    def __init__(self, bus: Bus, fleet: Fleet) -> None:
        self._bus = bus
        self._fleet = fleet
        self._told: dict[str, Properties] = {}
        """By worker."""
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By model: whoever comes meanwhile gets the same answer."""

    async def of(self, model: str) -> Properties:
        """Of any of the workers that serve it. NotReady while none has loaded it, and when none answers; QueueFull and
        BusUnavailable as any job's."""
        if not self._fleet.loaded(model):
            raise NotReady(self._fleet.loading)
        if (known := self._known(model)) is not None:
            return known
        async with self._asking[model]:
            known = self._known(model)
            return known if known is not None else await self._ask(model)

    def _known(self, model: str) -> Properties | None:
        living = {worker.id for worker in self._fleet.workers}
        self._told = {worker: told for worker, told in self._told.items() if worker in living}
        return next((self._told[each.id] for each in self._fleet.loaded(model) if each.id in self._told), None)

    async def _ask(self, model: str) -> Properties:
        job = Job(id=self._bus.queue.new_job_id(), model=model, request=GetProperties(), deadline_s=ANSWER_S)
        try:
            async with asyncio.timeout(ANSWER_S), self._bus.log.follow(job.id, expects=True) as reader:
                await self._bus.queue.enqueue(job)
                async for _, event in reader:
                    if isinstance(event, Finished):
                        return self._heard(event)
        except TimeoutError:
            raise NotReady(f"No worker of {model!r} has answered") from None
        raise BusUnavailable("The queue has lost the question")

    def _heard(self, finished: Finished) -> Properties:
        if (failure := failure_of(finished)) is not None:
            raise failure
        told = next(part for part in finished.parts if isinstance(part, Properties))
        if finished.worker:
            self._told[finished.worker] = told
        return told
