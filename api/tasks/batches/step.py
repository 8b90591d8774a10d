"""A step of a batch: validate it, feed what there is room for, collect what has ended, finish it. Read this first.

A step is short, may be cut off anywhere, and is then done again by whoever takes the batch next: what was done is in
Redis and in the store, and each write is safe to repeat.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import structlog

from api.images import Images
from api.tasks.batches.collecting import Collecting
from api.tasks.batches.feeding import Feeding
from api.tasks.batches.holding import Rest
from api.tasks.batches.making import Maker
from api.tasks.batches.patience import Patience
from api.tasks.batches.validation import Busy, Validation
from shared.batches import Batch, BatchStatus, LineFault
from shared.bus import Bus, Hold
from shared.errors import UnknownFile
from shared.settings import TasksSettings
from shared.store import Store

TURN_S = 1.0
"""After which others have their turn."""

BUSY_S = 0.5
"""Until a large file is looked at again that waits for others."""

RECALL_EVERY_S = 1.0
LONGEST_WAIT_S = 60.0

PLAN_LOST = LineFault(code="plan_lost", message="the store of files has lost what was left to be done")

log = structlog.get_logger(__name__)


class Now(NamedTuple):
    """The bus's clock, without asking it again."""

    at: float
    since: float

    def __call__(self) -> float:
        return self.at + time.monotonic() - self.since


class Work:
    """On any batch that somebody holds."""

    def __init__(self, bus: Bus, store: Store, images: Images, settings: TasksSettings) -> None:
        self._batches = bus.batches
        self._retention_s = settings.file_retention_s
        self._patience = Patience()
        self._validation = Validation(bus, store, settings, self._patience)
        self._feeding = Feeding(bus, store, Maker(images), images.fleet, settings.batch_in_flight)
        self._collecting = Collecting(bus, store)

    async def step(self, hold: Hold) -> Rest:
        """What can be done now; and when it is worth another look. Raises StoreUnavailable, BusUnavailable, and
        UnknownFile when the store has lost the plan, and there is time for it to be there again."""
        now = Now(hold.now, time.monotonic())
        try:
            rest = await self._step(hold, now)
        except UnknownFile:
            batch = await self._looked_up(hold)
            is_lost = self._patience.is_over(batch, now())
            if is_lost or batch.is_stopping:
                # What is on its way can be stopped without the plan, and keeps others waiting as long as it is not.
                await self._batches.recall(await self._batches.flights(batch.id))
            if not is_lost:
                raise
            # Nobody knows any more what the lines were that have no record.
            if await self._batches.finish(hold, self._retention_s, fault=PLAN_LOST):
                self._forget(batch)
            return Rest(0.0)
        self._patience.forget(hold.batch_id)
        return rest

    async def _step(self, hold: Hold, now: Now) -> Rest:
        batch = await self._looked_up(hold)
        if batch.status is BatchStatus.VALIDATING:
            try:
                await self._validation.run(hold, batch)
            except Busy:
                return Rest(BUSY_S)
            batch = await self._looked_up(hold)
        batch, is_more = await self._collect(hold, batch, now)
        if batch.status is BatchStatus.IN_PROGRESS and now() >= batch.expires_at:
            if is_more:
                return Rest(0.0)  # what has ended in time counts, and it may be all
            if batch.n_fed < batch.n_planned or batch.n_in_flight:
                await self._batches.finalize(hold, "expired")
                batch = await self._looked_up(hold)
        if batch.is_stopping:
            batch = await self._stop(hold, batch)
            wait_s: float | None = RECALL_EVERY_S
        else:
            wait_s = await self._feeding.run(hold, batch, now())
            batch = await self._looked_up(hold)
        if batch.status.is_ended or await self._finished(hold, batch):
            return Rest(0.0)
        return self._rest(batch, now(), wait_s)

    async def _collect(self, hold: Hold, batch: Batch, now: Now) -> tuple[Batch, bool]:
        """Returns the batch as it is then, and whether there is more to collect."""
        until = now() + TURN_S
        while await self._collecting.run(hold, batch, now()):
            batch = await self._looked_up(hold)
            if now() > until:
                return batch, True
        return batch, False

    async def _stop(self, hold: Hold, batch: Batch) -> Batch:
        """Nothing more is fed: what is on its way is called back, and the rest of the plan is recorded as it stands."""
        if batch.n_in_flight:
            await self._batches.recall(await self._batches.flights(batch.id))
        if batch.n_fed < batch.n_planned and await self._collecting.give_up(hold, batch):
            batch = await self._looked_up(hold)
        return batch

    async def _finished(self, hold: Hold, batch: Batch) -> bool:
        if batch.status is BatchStatus.VALIDATING or batch.n_fed < batch.n_planned or batch.n_in_flight:
            return False
        if not await self._batches.finalize(hold, "over") or not await self._batches.finish(hold, self._retention_s):
            return False
        self._forget(batch)
        return True

    def _forget(self, batch: Batch) -> None:
        self._collecting.pace.forget(batch.id)
        self._feeding.weights.forget(batch.id)
        self._patience.forget(batch.id)
        log.info("finished", batch=batch.id, lines=batch.n_total, completed=batch.n_completed, failed=batch.n_failed)

    def _rest(self, batch: Batch, now: float, wait_s: float | None) -> Rest:
        pace = self._collecting.pace
        waits = [pace.interval_s(batch, now), LONGEST_WAIT_S]
        if not batch.is_stopping:
            waits.append(max(0.0, batch.expires_at - now))
        elif batch.n_fed < batch.n_planned:
            waits.append(0.0)
        if wait_s is not None:
            waits.append(wait_s)
        return Rest(min(waits), pace.enough(batch) if batch.n_in_flight else 0)

    async def _looked_up(self, hold: Hold) -> Batch:
        batch = await self._batches.record(hold.batch_id)
        if batch is None:
            raise LookupError(f"the batch {hold.batch_id} has gone")
        return batch
