"""Takes what the engine says to the bus: numbered, under the lease, and gathered so that nobody waits for Redis.

The engine hands over each step's events from its own thread and goes on. Here they gather while a pipeline is under
way; then everything that is due goes out in the next one. What somebody waits for is sent at once; bulk is a
checkpoint every quarter of a second or 32 tokens. While the bus is away events gather, bounded by the context of each
slot, and the lease keeper gives the jobs up after one lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Sequence

import structlog

from shared.bus import Chunk, Lease, LeaseKeeper, Queue, Verdict
from shared.errors import BusUnavailable, Cancelled
from shared.events import Accepted, Failure, Part, Progress, Tokens
from shared.jobs import Lane
from worker.engine import Engine, EngineEvent, SequenceKey
from worker.held import Held, HeldJobs

BULK_WAIT_S = 0.25
BULK_TOKENS = 32
FED_PER_SLOT = 2
"""Sequences of one job that are in the engine for each slot: the next one is at hand when one ends."""
RETRY_S = 0.1
RETRY_MAX_S = 2.0

log = structlog.get_logger(__name__)


class Publisher:
    """One per worker. `post` is for the decode thread; everything else runs on the event loop."""

    def __init__(self, queue: Queue, held: HeldJobs, worker_id: str) -> None:
        self._queue = queue
        self._held = held
        self._worker_id = worker_id
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[tuple[SequenceKey, EngineEvent | Accepted | Part]] = deque()
        self._posted = asyncio.Event()
        self._is_closing = False
        self._sent_at = 0.0
        self._engine: Engine | None = None
        self._keeper: LeaseKeeper | None = None

    def attach(self, engine: Engine, keeper: LeaseKeeper) -> None:
        """Whom to tell when a job is cancelled, lost or over: they are made after us, since they call us."""
        self._engine, self._keeper = engine, keeper

    def post(self, events: Sequence[tuple[SequenceKey, EngineEvent]]) -> None:
        """What one step said. Any thread; at most one wake-up of the loop per step, never a wait."""
        self._inbox.extend(events)
        # Waking the loop takes CPU time from the decode that is under way: bulk tokens are found when they are due.
        if not all(self._can_wait(key, event) for key, event in events):
            self._loop.call_soon_threadsafe(self._posted.set)

    def _can_wait(self, key: SequenceKey, event: EngineEvent) -> bool:
        held = self._held.get(key.job_id)
        return held is None or (held.job.lane is Lane.BULK and isinstance(event, Tokens | Progress))

    def say(self, lease: Lease, event: Accepted | Part | Failure) -> None:
        """The intake's yes or no, or all there is to say. Event loop only."""
        self._inbox.append((SequenceKey(lease.job_id, 0, lease.mark), event))
        self._posted.set()

    async def run(self) -> None:
        """Publish until `close`, and then all that was said before it."""
        while not self._is_closing:
            await self._wait()
            self._hear()
            if any(held.is_urgent for held in self._held) or self._is_time_for_bulk():
                # One pipeline for all is hardly dearer than for one: what the others have goes along.
                await self._send(list(self._held))
        self._hear()
        await self._send(list(self._held))

    def close(self) -> None:
        self._is_closing = True
        self._posted.set()

    async def _wait(self) -> None:
        """Until something that cannot wait is posted, or it is time to look for what can."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BULK_WAIT_S if len(self._held) else None):
                await self._posted.wait()
        self._posted.clear()

    def _hear(self) -> None:
        while self._inbox:
            key, event = self._inbox.popleft()
            held = self._held.get(key.job_id)
            # Words of an attempt that was lost in the meantime are nobody's, even if the job came back to us.
            if held and held.lease.mark == key.attempt:
                if isinstance(event, Failure) and held.failure is None and self._engine:
                    # It ends the job, and no other sequence of it may go on with a slot.
                    self._engine.discard(key.job_id, key.attempt)
                held.hear(event)
                self.feed(held)

    def feed(self, held: Held) -> None:
        """Give the engine of a job what it may have of it now. Event loop only."""
        if held.ahead and self._engine and not held.is_complete:
            for task in held.take_tasks(FED_PER_SLOT * self._engine.config.n_slots):
                self._engine.submit(task)

    def _is_time_for_bulk(self) -> bool:
        return time.monotonic() - self._sent_at >= BULK_WAIT_S or any(
            len(held.unsent) >= BULK_TOKENS for held in self._held
        )

    async def _send(self, jobs: list[Held]) -> None:
        """One pipeline of appends, then what ends or goes back, which must not overtake them."""
        self._sent_at = time.monotonic()
        chunks = [chunk for held in jobs for chunk in held.take_chunks()]
        if chunks:
            for chunk, verdict in zip(chunks, await self._append(chunks), strict=True):
                self._heed(chunk.lease, verdict)
        over = [held for held in jobs if held.is_over and self._held.get(held.job.id) is held]
        await asyncio.gather(*(self._finish(held) if held.is_complete else self._release(held) for held in over))

    async def _append(self, chunks: list[Chunk]) -> list[Verdict]:
        """Repeating is safe: the log refuses an entry that it already has, and that counts as written."""
        wait = RETRY_S
        while True:
            try:
                return await self._queue.append(chunks)
            except BusUnavailable as error:
                log.warning("tokens wait for the bus", chunks=len(chunks), reason=error.message)
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))
                wait = min(wait * 2, RETRY_MAX_S)
                if not any(self._is_held(chunk.lease) for chunk in chunks):
                    return [Verdict.LOST] * len(chunks)

    def _is_held(self, lease: Lease) -> bool:
        held = self._held.get(lease.job_id)
        return held is not None and held.lease == lease

    def _heed(self, lease: Lease, verdict: Verdict) -> None:
        if verdict is Verdict.CANCEL:
            self.cancel(lease.job_id)
        elif verdict is Verdict.LOST:
            self.lose(lease)

    async def _finish(self, held: Held) -> None:
        wait = RETRY_S
        while self._held.get(held.job.id) is held:
            try:
                if not await self._queue.finish(held.lease, held.ending(self._worker_id), held.next_event):
                    log.warning("a job was finished by somebody else", job=held.job.id)
                break
            except BusUnavailable as error:
                log.warning("an ending waits for the bus", job=held.job.id, reason=error.message)
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))
                wait = min(wait * 2, RETRY_MAX_S)
        self._let_go(held)

    async def _release(self, held: Held) -> None:
        """Nothing is heard meanwhile, so nothing of this attempt can follow. Whether it was applied may stay unknown:
        then its lease runs out, which is no death either."""
        try:
            if await self._queue.release(held.lease):
                log.info("given back", job=held.job.id, tokens=held.next_event - 1)
            else:
                log.warning("a lease was lost", job=held.job.id)
        except BusUnavailable:
            log.warning("not given back: its lease must run out first", job=held.job.id)
        self._let_go(held)

    def give_back(self, held: Held) -> None:
        """The job goes back to the queue with what it has said by then, and another worker can have it at once. Should
        it have ended by then, or somebody have cancelled it, that stands. Event loop only."""
        if self._engine:
            self._engine.discard(held.job.id, held.lease.mark)
        held.leave()
        self._posted.set()

    def cancel(self, job_id: str) -> None:
        """Somebody wants the job stopped: the engine ends it between two decodes, and says so. A job that it does not
        have, or not all of, it cannot end: that is said here."""
        held = self._held.get(job_id)
        if held and (held.ahead or not held.is_taken_in):
            self.say(held.lease, Failure.of(Cancelled("The job was cancelled.")))
        elif held and self._engine:
            self._engine.cancel(job_id)

    def lose(self, lease: Lease) -> None:
        """The lease is another's, or has run out: not one more word of this attempt."""
        held = self._held.get(lease.job_id)
        if self._engine and held and held.lease == lease:
            log.warning("a lease was lost", job=lease.job_id)
            self._engine.discard(lease.job_id, lease.mark)
            self._let_go(held)

    def _let_go(self, held: Held) -> None:
        """Unless the job has come back under another lease meanwhile."""
        if self._held.get(held.job.id) is held:
            self._held.remove(held.job.id)
            if self._keeper:
                self._keeper.drop(held.job.id)
