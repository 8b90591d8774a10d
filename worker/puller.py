"""Claims jobs for the slots that are free, and has them handed to the engine.

It takes no more than it can start: the interactive lane gets the slots that are free or hold bulk, the bulk lane the
free ones and a small window beyond, so that a slot that frees up has its next job at hand. A job counts as many slots
as it has sequences to go; one with more of them than there are slots is taken all the same, has them in turn, and
lets one other job at a time in between. What is meant for this worker alone has a number of its own: it waits here, for
its slot, and keeps nobody else out but from that one. Inputs need no slot: of them it has in hand about what one decode
holds, so that those of a pile are shared by all workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import structlog

from shared.bus import Claimed, LeaseKeeper, Queue, TokenLog, Wanted
from shared.errors import BusUnavailable, Cancelled, EngineFailed, NotReady, Rejected
from shared.events import Failure, Tokens
from shared.jobs import Generation, Job, Lane, SlotAction
from worker.engine import Engine, EngineSnapshot
from worker.held import Held, HeldJobs
from worker.intake import Intake, Registrar
from worker.past import Past, pasts_of
from worker.publisher import Publisher

POLL_S = 0.25
"""Longest time between two looks at the queue: a wake-up is a message, and messages get lost."""
REST_S = 3.0
"""For so long after it gave bulk back a worker leaves all of it to others."""
QUICK_JOBS = 4
"""At once, beside all slots."""
INPUT_PLACES = 32
"""In hand, of people or of bulk: some two thousand tokens keep the embedder busy while more are claimed, and another
worker would have nothing to do for as long as they take."""
OWN_JOBS = 64
"""That are meant for this worker alone, at once: many may wait for one slot, before one that wants another."""
EXAMINED_S = 0.25
"""A constraint that is tried for longer may be tried for seconds, and images are encoded as long: such a job wants no
slot meanwhile, which others can have."""
MOST_EXAMINED = 32
"""Such jobs that are held at once."""

log = structlog.get_logger(__name__)


def bulk_window(n_waiting: int, n_slots: int) -> int:
    """Bulk jobs to hold beyond the slots. With many waiting, as many as there are slots: sequences that end together
    are followed by others at once, and batches stay full. It shrinks as the backlog ends, so that no worker hoards
    the tail while another has nothing to do."""
    return min(n_slots, max(1, n_waiting // 4))


def _n_slots(jobs: Sequence[Held]) -> int:
    """Slots that these take, or could soon."""
    before = time.monotonic() - EXAMINED_S
    examined = [held for held in jobs if _is_examined(held, before)][:MOST_EXAMINED]
    return sum(held.n_slots for held in jobs) - sum(held.n_slots for held in examined)


def _is_examined(held: Held, before: float) -> bool:
    return (held.job.is_constrained or held.job.has_images) and not held.is_taken_in and held.held_since < before


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
        self._n_waiting = 0
        self._sweep_at = 0.0
        self._share_at = 0.0
        self._rests_until = 0.0
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

    def rest(self) -> None:
        """Bulk is about to be given back: claim none for a while, so that it is not this worker that has it again."""
        self._rests_until = time.monotonic() + REST_S

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

    def wanted(self, *, may_share: bool = False) -> Wanted:
        """`may_share`: also what has no slot to itself. One more, if a job that is larger than this worker has it
        alone, so that it keeps nobody out; and bulk while people have all slots, to grow old here until its turn."""
        interactive, bulk = self._held.of(Lane.INTERACTIVE), self._held.of(Lane.BULK)
        snapshot = self._engine.snapshot()
        n_people_own, n_bulk_own = self._n_slots_of_own(snapshot)
        n_free = self._station.n_slots - _n_slots(interactive) - n_people_own
        window = bulk_window(self._n_waiting, self._station.n_slots) if n_free > 0 or may_share else 0
        n_free_for_bulk = n_free + window - _n_slots(bulk) - n_bulk_own
        one_more = int(may_share and n_free < 0 and len(interactive) == 1)
        one_more_of_bulk = int(may_share and n_free_for_bulk < 0 and len(bulk) == 1)
        is_resting = time.monotonic() < self._rests_until
        n_inputs, n_bulk_inputs = self._n_places(may_share=may_share)
        return Wanted(
            quick=max(0, QUICK_JOBS - len(self._held.of("quick"))),
            interactive=max(n_free, one_more),
            # What is parked goes first when there is room again; others may have room for more now.
            bulk=0 if snapshot.n_parked_for_any or is_resting else max(n_free_for_bulk, one_more_of_bulk),
            suspects=0 if self._held.has_suspect else 1,
            own=max(0, OWN_JOBS - len(self._held.of("own"))),
            inputs=n_inputs,
            bulk_inputs=n_bulk_inputs,
        )

    def _n_places(self, *, may_share: bool) -> tuple[int, int]:
        """For inputs, of people and of bulk. Beside people bulk is taken at intervals alone: it waits for them here,
        and another worker may have nothing to do."""
        people, bulk = self._held.of("inputs"), self._held.of("bulk_inputs")
        n_free = INPUT_PLACES - sum(held.n_places for held in people)
        n_free_for_bulk = INPUT_PLACES - sum(held.n_places for held in bulk)
        one_more = int(may_share and len(people) == 1)
        return max(n_free, one_more), max(n_free_for_bulk, 0) if may_share or not people else 0

    def _n_slots_of_own(self, snapshot: EngineSnapshot) -> tuple[int, int]:
        """Slots that those take which are meant for this worker alone, of people and of bulk: however many want one
        slot, one has it at a time. Who waits for one that is counted already, since another has it to whom he does not
        go first, takes none."""
        named: dict[Lane, set[int]] = {lane: set() for lane in Lane}
        n_others = dict.fromkeys(Lane, 0)
        for held in self._held.of("own"):
            if isinstance(held.job.request, Generation):
                named[held.job.lane].add(held.job.request.id_slot % self._station.n_slots)
                n_others[held.job.lane] += held.n_slots - 1
        running = [(slot.id, self._held.get(slot.job_id)) for slot in snapshot.slots if slot.job_id]
        others = [(slot, held.job.lane) for slot, held in running if held and not held.claimed.is_own]
        people = named[Lane.INTERACTIVE] - {slot for slot, lane in others if lane is Lane.INTERACTIVE}
        bulk = named[Lane.BULK] - named[Lane.INTERACTIVE] - {slot for slot, _ in others}
        return len(people) + n_others[Lane.INTERACTIVE], len(bulk) + n_others[Lane.BULK]

    async def _claim(self) -> list[Claimed]:
        now = time.monotonic()
        is_sweep, may_share = now >= self._sweep_at, now >= self._share_at
        if may_share:
            # Not at each wake-up: a worker with free slots that hears it too is to have the job.
            self._share_at = now + POLL_S
        try:
            claimed = await self._queue.claim(
                self._station.worker_id, self._station.model, self.wanted(may_share=may_share), sweep=is_sweep
            )
        except BusUnavailable as error:
            log.warning("no jobs can be claimed", reason=error.message)
            await asyncio.sleep(random.uniform(0.5, 1.5))
            return []
        self._n_waiting = claimed[-1].n_waiting if claimed else self._n_waiting // 2
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
