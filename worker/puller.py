"""Claims as much as `demand` has it, takes each job in, and hands its tasks to the engine.

Knows leases and the queue; nothing of slots, nor of what becomes of a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import structlog

from shared.bus import Claimed, LeaseKeeper, Queue, TokenLog
from shared.errors import BusUnavailable, Cancelled, EngineFailed, NotReady, Rejected
from shared.events import Failure, Tokens
from shared.jobs import Job, Lane, SlotAction
from worker.demand import Demand
from worker.engine import Engine
from worker.held import Held, HeldJobs
from worker.intake import Intake, Registrar
from worker.past import Past, pasts_of
from worker.publisher import Publisher

POLL_S = 0.25
"""Longest time between two looks at the queue: a wake-up is a message, and messages get lost."""

log = structlog.get_logger(__name__)


class Station(NamedTuple):
    """Which worker pulls, and for what."""

    worker_id: str
    model: str
    n_slots: int
    lease_s: float


class Hands(NamedTuple):
    """Through whose hands a claimed job goes."""

    engine: Engine
    held: HeldJobs
    publisher: Publisher
    keeper: LeaseKeeper


class Puller:
    def __init__(self, queue: Queue, tokenlog: TokenLog, hands: Hands, registrar: Registrar, station: Station) -> None:
        self._queue = queue
        self._log = tokenlog
        self._engine, self._held, self._publisher, self._keeper = hands
        self._registrar = registrar
        self._station = station
        self._sweep_at = 0.0
        self._share_at = 0.0
        self.demand = Demand(self._engine, self._held, station.n_slots)
        self._nudged = asyncio.Event()
        self._is_closing = False
        self._held.on_freed = self.nudge
        self._held.on_cleared = self.sweep
        # Two threads: a long prompt being tokenized does not hold up a short one behind it. And one for what is quick
        # by kind, which has no limit of length: a megabyte to tokenize must not keep prompts from their slots. And one
        # for constraints, which are tried one at a time. And two for the images of each lane, which are encoded one at
        # a time too, by turns: one job may have a thousand of them.
        self._intake_threads = ThreadPoolExecutor(2, thread_name_prefix="intake")
        self._quick_thread = ThreadPoolExecutor(1, thread_name_prefix="quick")
        self._constraint_thread = ThreadPoolExecutor(1, thread_name_prefix="constraint")
        self._image_threads = {lane: ThreadPoolExecutor(2, thread_name_prefix="image") for lane in Lane}
        self._slot_thread = ThreadPoolExecutor(1, thread_name_prefix="slot")

    def nudge(self) -> None:
        """There may be room or work: look now. Event loop only."""
        self._nudged.set()

    def sweep(self) -> None:
        """Jobs may lie without an owner: look for them now."""
        self._sweep_at = 0.0
        self._nudged.set()

    async def run(self) -> None:
        """Pull until `close`; what was claimed by then is taken in."""
        async with asyncio.TaskGroup() as intakes:
            while not self._is_closing:
                claimed = await self._claim()
                for job in claimed:
                    if old := self._held.get(job.job.id):
                        # We were away for a whole lease, and have claimed what was ours: that attempt is over.
                        self._publisher.lose(old.lease)
                    if job.attempt > 1:
                        log.info("taken over", job=job.job.id, attempt=job.attempt, deaths=job.deaths)
                    # Held before anything can fail: from here on its lease is renewed until it ends or is given back.
                    self._held.add(Held(job))
                    self._keeper.hold(job.lease)
                    intakes.create_task(self._take_in(job))
                if not claimed:
                    await self._wait()

    def close(self) -> None:
        self._is_closing = True
        self._nudged.set()

    async def listen(self) -> None:
        """Follow the wake-ups until cancelled. While they cannot be had, polling goes on without them."""
        while True:
            try:
                await self._follow_wakes()
            except BusUnavailable as error:
                log.warning("no wake-ups can be heard", reason=error.message)

    async def _follow_wakes(self) -> None:
        wakes = self._queue.wakes(self._station.worker_id, self._station.model)
        async with contextlib.aclosing(wakes):
            async for wake in wakes:
                match wake.kind:
                    case "cancel" if wake.job_id:
                        self._publisher.cancel(wake.job_id)
                    case "new":
                        self.nudge()
                    case _:
                        self.sweep()

    async def _claim(self) -> list[Claimed]:
        now = time.monotonic()
        is_sweep, may_share = now >= self._sweep_at, now >= self._share_at
        if may_share:
            # Not at each wake-up: a worker with free slots that hears it too is to have the job.
            self._share_at = now + POLL_S
        try:
            claimed = await self._queue.claim(
                self._station.worker_id,
                self._station.model,
                self.demand.wanted(may_share=may_share),
                sweep=is_sweep,
                on_lease=self._keeper.hold,
            )
        except BusUnavailable as error:
            log.warning("no jobs can be claimed", reason=error.message)
            await asyncio.sleep(random.uniform(0.5, 1.5))
            return []
        self.demand.heard(claimed)
        if is_sweep:
            self._sweep_at = now + self._station.lease_s / 4 * random.uniform(0.8, 1.2)
        return claimed

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(POLL_S * random.uniform(0.7, 1.3)):
                await self._nudged.wait()
        except TimeoutError:
            return
        self._nudged.clear()

    async def _take_in(self, claimed: Claimed) -> None:
        """Template, tokens and limits in a thread, then into the engine. A no goes to the client as the job's end."""
        try:
            pasts = await self._pasts(claimed)
            intake = await asyncio.get_running_loop().run_in_executor(
                self._threads(claimed.job), self._admit, claimed, pasts
            )
        except (Rejected, EngineFailed, NotReady) as error:
            self._publisher.say(claimed.lease, Failure.of(error))
            return
        held = self._still_held(claimed)
        if held and intake is None and not held.is_over:
            self._publisher.give_back(held)
        elif held and intake and not held.is_complete:  # it may have been cancelled meanwhile
            held.expected = intake.n_parts
            held.is_taken_in = True
            self._publisher.say(claimed.lease, intake.accepted)
            if intake.answer is not None:
                self._publisher.say(claimed.lease, intake.answer)
            held.ahead.extend(intake.tasks)
            self._publisher.feed(held)

    def _admit(self, claimed: Claimed, pasts: Mapping[int, Past]) -> Intake | None:
        """In a thread. None for a job that is gone by the time that its turn comes, or that is better tried by another
        worker: with seconds for each constraint a line of them would hold up those behind it, or our leaving."""
        is_leaving = self._is_closing and claimed.job.is_constrained
        if is_leaving or self._still_held(claimed) is None:
            return None
        try:
            return self._registrar.admit(claimed, pasts, lambda: self._is_wanted(claimed))
        except Cancelled:
            return None

    def _is_wanted(self, claimed: Claimed) -> bool:
        """For any thread."""
        held = self._still_held(claimed)
        return held is not None and not held.is_over

    def _threads(self, job: Job) -> ThreadPoolExecutor:
        if isinstance(job.request, SlotAction):
            return self._slot_thread
        if job.is_quick:
            return self._quick_thread
        if job.has_images:
            return self._image_threads[job.lane]
        return self._constraint_thread if job.is_constrained else self._intake_threads

    async def _pasts(self, claimed: Claimed) -> dict[int, Past]:
        """What earlier attempts put in the log: a new attempt goes on behind it."""
        if claimed.lease.epoch <= 1:
            return {}
        said = await self._read_log(claimed)
        if said and (held := self._still_held(claimed)):
            held.next_event = said[-1][0] + 1
        return pasts_of(tokens for _, tokens in said)

    def _still_held(self, claimed: Claimed) -> Held | None:
        held = self._held.get(claimed.job.id)
        return held if held and held.claimed is claimed else None

    async def _read_log(self, claimed: Claimed) -> list[tuple[int, Tokens]]:
        """Patiently: the lease keeper gives the job up when the bus stays away."""
        while self._still_held(claimed):
            try:
                return await self._log.read(claimed.job.id)
            except BusUnavailable:
                await asyncio.sleep(random.uniform(0.1, 0.5))
        return []
