"""Gives bulk that has no slot here back to the queue, when another worker has one for it now.

People keep it from its slot, or there are too few cells. It goes on by itself when there is room again, while another
worker has to compute all of its tokens first: so it is given back after some seconds only, and only where other workers
say that they have idle slots and nothing that waits for them. Who claims it goes on at its next token.

What workers say of themselves is a moment old, and their cells nobody knows: the job may wait again where it comes. So
it stays longer with each time that it was given back, and no job wanders for ever. Knows nothing of leases.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence

import structlog

from shared.bus import Presence, WorkerState
from shared.errors import BusUnavailable
from worker.held import Held
from worker.puller import Hands

EVERY_S = 1.0
"""Others' words are half as old at most, so that no idle slot is given to twice."""
PATIENCE_S = 5.0
"""Without a slot, before a job is given back for the first time. Most answers to people are over by then."""

log = structlog.get_logger(__name__)


class Handover:
    """One per worker, on its event loop."""

    def __init__(self, presence: Presence, hands: Hands, worker_id: str, *, on_given: Callable[[], None]) -> None:
        """`on_given` is called before anything is given back."""
        self._presence = presence
        self._engine, self._held, self._publisher, _ = hands
        self._worker_id = worker_id
        self._on_given = on_given

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))
            try:
                await self.look()
            except BusUnavailable as error:
                log.debug("nobody is seen", reason=error.message)

    async def look(self) -> int:
        """Give back what has waited too long, and not more than others can start. Returns how many jobs. Raises
        BusUnavailable."""
        if not self._stuck():
            return 0
        share = share_of_idle(await self._presence.workers(), self._worker_id)
        # Of a fraction the chance: so many as there are go, however many workers divide them.
        n_slots = math.floor(share + random.random())
        n_given = 0
        for held in self._stuck():  # once more: it was a while
            if n_slots <= 0:
                break
            self._on_given()
            self._publisher.give_back(held)
            n_slots -= held.n_slots
            n_given += 1
        return n_given

    def _stuck(self) -> list[Held]:
        """Jobs that have waited too long, the longest first: none of their sequences has a slot. What is meant for this
        worker alone stays."""
        snapshot, now = self._engine.snapshot(), time.monotonic()
        moving = {slot.job_id for slot in snapshot.slots}
        since: dict[Held, float] = {}
        for key, at in snapshot.stuck:
            held = self._held.get(key.job_id)
            if held is None or held.claimed.is_own:
                continue
            if held.lease.mark == key.attempt and not held.is_over and key.job_id not in moving:
                since[held] = max(at, since.get(held, at))
        overdue = [held for held, at in since.items() if now - at >= _patience_s(held)]
        return sorted(overdue, key=lambda held: since[held])


def _patience_s(held: Held) -> float:
    return PATIENCE_S * (1 + held.claimed.n_given_back)


def share_of_idle(workers: Sequence[WorkerState], worker_id: str) -> float:
    """Slots in which other workers of the same model would start bulk at once, divided among those who have some to
    give back. 0 for a worker that nobody sees."""
    own = next((worker for worker in workers if worker.id == worker_id), None)
    if own is None:
        return 0.0
    peers = [worker for worker in workers if worker.id != worker_id and _can_stand_in(worker, own)]
    n_givers = 1 + sum(_has_waiting(peer) for peer in peers)
    return sum(map(_n_idle, peers)) / n_givers


def _can_stand_in(worker: WorkerState, own: WorkerState) -> bool:
    """Whether it serves the very same model, wherever its file lies, with as much context: with less the job might not
    fit, and with more it would end elsewhere."""
    return worker.status == "ready" and worker.model.model_copy(update={"path": own.model.path}) == own.model


def _has_waiting(worker: WorkerState) -> bool:
    return worker.n_waiting + worker.n_parked > 0


def _n_idle(worker: WorkerState) -> int:
    return 0 if _has_waiting(worker) else sum(not slot.is_processing for slot in worker.slots)
