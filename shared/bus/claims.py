"""Jobs in workers' hands: claimed under a lease, spoken for, ended or given back. Every write carries its lease.

Knows nothing of what requests mean, and not who made the jobs.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

import structlog
from pydantic import TypeAdapter, ValidationError

from shared.bus.annex import Annex, Reference
from shared.bus.connect import Reply, Sender
from shared.bus.keys import Keys, part
from shared.bus.script import run, script
from shared.bus.subscriber import Listener
from shared.errors import BusUnavailable, StoreUnavailable, UnknownFile, Unreadable
from shared.events import Accepted, Failure, Finished, Progress, Tokens
from shared.jobs import VERSION, Job
from shared.settings import BusSettings

SUSPECT_DEATHS = 2
"""Workers that died with a job, after which it is not trusted: `claim.lua` ends it at the next."""

TRIES = 4
"""For what may be said twice."""

TOKENS: TypeAdapter[tuple[Tokens, ...]] = TypeAdapter(tuple[Tokens, ...])
"""The events of one log entry."""

log = structlog.get_logger(__name__)


class Wanted(NamedTuple):
    """What a worker can take now, in slots. Both lanes share them: an interactive job that is handed out also takes
    its places from bulk, so that at most max(interactive, bulk) are taken by both; but the last job may want more than
    are left."""

    quick: int
    """Jobs that need no slot."""
    interactive: int
    bulk: int
    suspects: int = 1
    """Of all these, jobs that two workers have died with. Two of them in one worker could not be told apart at its
    death, and an innocent one would be given up with the guilty."""
    own: int = 0
    """Jobs that are for this worker alone, whether they need a slot or not."""
    inputs: int = 0
    """Of people, to embed or to rank: places beside all slots."""
    bulk_inputs: int = 0
    """Bulk's, beside those."""

    @property
    def is_nothing(self) -> bool:
        return not any(self._replace(suspects=0))


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write for a job. `token` is `worker:epoch:nonce`; no two leases of a job ever share one."""

    job_id: str
    token: str

    @property
    def worker(self) -> str:
        """As in keys: percent-encoded."""
        return self.token.rsplit(":", 2)[0]

    @property
    def epoch(self) -> int:
        """Counts the times that the job was handed out."""
        return int(self.token.rsplit(":", 2)[1])

    @property
    def mark(self) -> int:
        """What tells this attempt from all others. The epoch does not: a server that lost its last second counts it
        again."""
        return int(self.token.rsplit(":", 2)[2], 16)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job in a worker's hands. Times are Unix seconds on the bus's clock, `now` is when it was claimed."""

    job: Job
    lease: Lease
    attempt: int
    """1 the first time. What was given back does not count."""
    deaths: int
    """How often a worker fell silent with this job. The third time ends it."""
    n_events: int
    """Events that its log has from earlier attempts."""
    enqueued_at: float
    deadline_at: float
    now: float
    n_waiting: int = 0
    """Bulk jobs of the model that were left in the queue of this job's partition."""
    is_own: bool = False
    """It was meant for this worker alone."""
    queue: str = ""
    """The line that it stood in. Older versions queued inputs in the lanes."""

    @property
    def is_suspect(self) -> bool:
        return self.deaths >= SUSPECT_DEATHS

    @property
    def n_given_back(self) -> int:
        """How often it was given back: it was handed out so often more than attempts count."""
        return self.lease.epoch - self.attempt


class _Claim(NamedTuple):
    """Who claims, and how."""

    worker_id: str
    model: str
    is_sweep: bool
    on_lease: Callable[[Lease], None] | None


class Chunk(NamedTuple):
    """What a job says at once. `first_event` is the number of the first of `events`; it counts without them too."""

    lease: Lease
    first_event: int
    events: tuple[Tokens, ...] = ()
    accepted: Accepted | None = None
    progress: Progress | None = None


class Verdict(Enum):
    OK = "ok"
    CANCEL = "cancel"
    """It was written, and somebody asked to cancel the job."""
    LOST = "lost"
    """Nothing was written: the lease has gone to somebody else, or the job has ended."""


class Wake(NamedTuple):
    """`new` work, work that was `released` (claim with a sweep), a `cancel`, or `resync`: something may have been
    missed, so look at everything."""

    kind: Literal["new", "released", "cancel", "resync"]
    job_id: str | None = None


class Claims:
    def __init__(self, settings: BusSettings, keys: Keys, link: Sender, subscriber: Listener, annex: Annex) -> None:
        self._settings = settings
        self._keys = keys
        self._link = link
        self._subscriber = subscriber
        self._annex = annex
        self._turn = 0
        """The partition that the next claim begins with."""

    async def claim(
        self,
        worker_id: str,
        model: str,
        wanted: Wanted,
        *,
        sweep: bool = False,
        on_lease: Callable[[Lease], None] | None = None,
    ) -> list[Claimed]:
        """Jobs for this worker, each under a lease of its own that must be kept alive; never more than wanted.

        `sweep` also looks for jobs that were released or whose lease has run out, and takes them first. Not repeated
        when no reply comes: jobs that were handed out into the void come back by their leases. Whoever cancels this
        call has nothing to hold: what it got is given back. `on_lease` hears of a job that takes a moment to be read,
        whose lease must be kept alive from then on; should it not be read after all, the lease is lost. Raises
        BusUnavailable.
        """
        claiming = asyncio.create_task(self._claim(_Claim(worker_id, model, sweep, on_lease), wanted))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            with suppress(BusUnavailable):
                for claimed in await claiming:
                    await self.release(claimed.lease)
            raise

    async def append(self, chunks: Sequence[Chunk]) -> list[Verdict]:
        """Writes chunks into their jobs' logs in one round trip, in order, and says what became of each.

        Repeating it with the same chunks changes nothing. Raises BusUnavailable.
        """
        append = script("append")
        calls = [
            append.call(
                (self._keys.job(chunk.lease.job_id), self._keys.log(chunk.lease.job_id)),
                (
                    self._keys.live(chunk.lease.job_id),
                    chunk.lease.token,
                    chunk.lease.epoch,
                    chunk.first_event,
                    len(chunk.events),
                    TOKENS.dump_json(chunk.events) if chunk.events else b"[]",
                    chunk.accepted.to_json() if chunk.accepted else "",
                    chunk.progress.to_json() if chunk.progress else "",
                ),
            )
            for chunk in chunks
        ]
        replies = await run(self._link, append, calls, tries=TRIES) if calls else []
        return [Verdict(reply.decode()) for reply in replies]

    async def finish(self, lease: Lease, finished: Finished, first_event: int, *, why_dead: str = "") -> bool:
        """Ends a job. `first_event` is the number after its last event. False: the lease was lost, or the log does
        not end there, and nothing was written.

        The first ending of a lease stands: finishing again is answered True and changes nothing. Raises BusUnavailable.
        """
        finish = script("finish")
        result = await self._annex.put_result(lease.job_id, f"{lease.epoch}-{lease.mark:x}", finished.to_json())
        call = finish.call(
            (self._keys.job(lease.job_id),),
            (
                self._keys.prefix_of(lease.job_id),
                lease.job_id,
                lease.token,
                finished.status,
                result,
                first_event,
                why_dead,
            ),
        )
        [reply] = await run(self._link, finish, [call], tries=TRIES)
        if not reply:
            await self._annex.drop((result,))
        return bool(reply)

    async def release(self, lease: Lease) -> bool:
        """Gives a job back with what it has said so far, without burning an attempt. False: the lease was lost.

        Raises BusUnavailable.
        """
        release = script("release")
        call = release.call(
            (self._keys.job(lease.job_id),),
            (self._keys.prefix_of(lease.job_id), lease.token, lease.worker),
        )
        [reply] = await run(self._link, release, [call], tries=TRIES)
        return bool(reply)

    async def leave(self, worker_id: str, model: str) -> None:
        """A worker will claim nothing any more: what was meant for it alone, and is not in its hands, need not wait
        until its silence shows that it is gone. Raises BusUnavailable."""
        leave = script("leave")
        for partition in range(self._keys.partitions):
            arguments = (part(worker_id), self._keys.wake(partition, model))
            await run(self._link, leave, [leave.call((self._keys.beats(partition),), arguments)], tries=TRIES)

    async def wakes(self, worker_id: str, model: str) -> AsyncGenerator[Wake, None]:
        """What a worker should look up for, as it is said. The first is a `resync`, and another follows whenever the
        connection was away. Raises BusUnavailable when the server cannot be reached at the start."""
        partitions = range(self._keys.partitions)
        wake = [self._keys.wake(partition, model) for partition in partitions]
        control = [self._keys.control(partition, worker_id) for partition in partitions]
        async with self._subscriber.listen([*wake, *control], limit=4096) as inbox:
            inbox.miss()
            while True:
                await inbox.wait(None)
                if inbox.missed:
                    inbox.missed = False
                    yield Wake("resync")
                while inbox.messages:
                    _, payload = inbox.messages.pop(0)
                    yield _wake(payload)

    async def _claim(self, claim: _Claim, wanted: Wanted) -> list[Claimed]:
        wanted = Wanted(*(max(0, number) for number in wanted))
        claimed: list[Claimed] = []
        self._turn += 1
        try:
            if self._keys.partitions == 1:
                await self._claim_around(claim, wanted, claimed)
            else:
                # Two rounds: nobody's bulk goes before a person's job that waits in another partition.
                people = wanted._replace(bulk=0, bulk_inputs=0)
                left = await self._claim_around(claim, people, claimed)
                n_interactive = wanted.interactive - left.interactive
                bulk = Wanted(0, 0, max(0, wanted.bulk - n_interactive), left.suspects, bulk_inputs=wanted.bulk_inputs)
                await self._claim_around(claim, bulk, claimed)
        except BusUnavailable:
            if not claimed:
                raise
        return claimed

    async def _claim_around(self, claim: _Claim, wanted: Wanted, claimed: list[Claimed]) -> Wanted:
        """From all partitions into `claimed`, beginning with another one each time; returns what is wanted still."""
        for step in range(self._keys.partitions):
            if wanted.is_nothing:
                break
            partition = (self._turn + step) % self._keys.partitions
            found, wanted = await self._claim_from(partition, claim, wanted)
            claimed += found
        return wanted

    async def _claim_from(self, partition: int, claim: _Claim, wanted: Wanted) -> tuple[list[Claimed], Wanted]:
        call = script("claim").call(
            (self._keys.load(partition, claim.model),),
            (
                self._keys.prefix(partition),
                part(claim.model),
                part(claim.worker_id),
                secrets.token_hex(8),
                round(self._settings.lease_s * 1000),
                "1" if claim.is_sweep else "0",
                *wanted,
                VERSION,
                " ".join(("", *self._annex.marks, "")),
            ),
        )
        while True:
            [reply] = await run(self._link, script("claim"), [call])
            now_ms, is_more, n_waiting, rows, *numbers = reply
            if rows or not is_more:
                break
        taken = Wanted(*numbers)
        left = Wanted(*(max(0, number - had) for number, had in zip(wanted, taken, strict=True)))
        left = left._replace(bulk=max(0, left.bulk - taken.interactive))
        read = await asyncio.gather(*(self._read(row, now_ms, n_waiting, claim.on_lease) for row in rows))
        return [claimed for claimed in read if claimed], left

    async def _read(
        self, row: list[Reply], now_ms: int, n_waiting: int, on_lease: Callable[[Lease], None] | None
    ) -> Claimed | None:
        """A job as it was handed out; None when it cannot be read: then it has ended, or waits again."""
        job_id, request, token, attempt, deaths, n_events, created_ms, deadline_ms, is_own, queue = row
        lease = Lease(job_id.decode(), token.decode())
        if on_lease and Reference.in_place_of(request or b""):
            on_lease(lease)
        try:
            job = Job.model_validate_json(await self._annex.fetch(request or b""))
        except StoreUnavailable as error:
            # The annex takes the store to be away now: such jobs are not asked for until it is seen again.
            log.warning("a job cannot be read now", job_id=lease.job_id, reason=error.message)
            with suppress(BusUnavailable):
                await self.release(lease)
            return None
        except (ValidationError, UnknownFile) as error:
            log.warning("a job cannot be read", job_id=lease.job_id, error=str(error))
            failure = Failure.of(Unreadable("What is stored of the job cannot be read."))
            with suppress(BusUnavailable):  # then its lease runs out, and the next one ends it
                await self.finish(lease, Finished(status="failed", failure=failure), n_events + 1, why_dead=str(error))
            return None
        return Claimed(
            job=job,
            lease=lease,
            attempt=attempt,
            deaths=deaths,
            n_events=n_events,
            enqueued_at=int(created_ms) / 1000,
            deadline_at=int(deadline_ms) / 1000,
            now=now_ms / 1000,
            n_waiting=n_waiting,
            is_own=bool(is_own),
            queue=job.queue if queue == b"own" else queue.decode(),
        )


def _wake(payload: bytes) -> Wake:
    if payload == b"new":
        return Wake("new")
    if payload == b"released":
        return Wake("released")
    return Wake("cancel", json.loads(payload)["cancel"])
