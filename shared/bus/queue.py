"""Jobs on their way to a worker and back: enqueue and cancel on one side, claim, append and finish on the other.

Every change of a job's state is one script, and every write of a worker carries its lease. Knows nothing of what
requests mean, and nothing of HTTP or llama.cpp.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Literal, NamedTuple
from urllib.parse import unquote

import structlog
from pydantic import TypeAdapter, ValidationError

from shared.bus.annex import LARGE, Annex, Reference
from shared.bus.connect import Reply, Sender
from shared.bus.enqueuing import RATE_FIELDS, Enqueuing, fingerprint_of, rate_of, seconds
from shared.bus.keys import Keys, part, partition_for
from shared.bus.places import NEWEST, Place, older, place_of
from shared.bus.script import ask, run, script
from shared.bus.subscriber import Listener
from shared.errors import (
    BusUnavailable,
    IdempotencyConflict,
    QueueFull,
    StoreUnavailable,
    UnknownFile,
    UnknownJob,
    Unreadable,
)
from shared.events import Accepted, Failure, Finished, Progress, Tokens
from shared.jobs import VERSION, Compat, Job, JobRecord, JobStatus, Lane, new_job_id, partition_of
from shared.settings import BusSettings
from shared.webhooks import Webhook

SUSPECT_DEATHS = 2
"""Workers that died with a job, after which it is not trusted: `claim.lua` ends it at the next."""

TRIES = 4
"""For what may be said twice."""

LINES = ("interactive", "bulk", "inputs", "bulk_inputs", "quick", "own")
"""Where jobs wait: the lanes, what needs no slot, and what is meant for one worker."""

PAGE_STEP, PAGE_STEPS = 100, 50
"""Jobs that a listing looks at in one round, and how many rounds it takes for one page at most."""

KEY_WAS_USED = "The idempotency key was used with another body."

TOKENS: TypeAdapter[tuple[Tokens, ...]] = TypeAdapter(tuple[Tokens, ...])
"""The events of one log entry."""

log = structlog.get_logger(__name__)


class Receipt(NamedTuple):
    job_id: str
    is_new: bool
    """False: the idempotency key had made this job before."""


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


class JobPage(NamedTuple):
    """Some of a tenant's jobs, newest first."""

    records: list[JobRecord]
    has_more: bool
    last_id: str | None
    """The job behind which the next page begins."""


class Wake(NamedTuple):
    """`new` work, work that was `released` (claim with a sweep), a `cancel`, or `resync`: something may have been
    missed, so look at everything."""

    kind: Literal["new", "released", "cancel", "resync"]
    job_id: str | None = None


class Queue:
    def __init__(self, settings: BusSettings, keys: Keys, link: Sender, subscriber: Listener, annex: Annex) -> None:
        self._settings = settings
        self._keys = keys
        self._link = link
        self._subscriber = subscriber
        self._annex = annex
        self._enqueuing = Enqueuing(settings, keys, link, annex)
        self._turn = 0
        """The partition that the next claim begins with."""

    def new_job_id(self, idempotency_key: str | None = None, tenant: str = "default") -> str:
        """An id in the partition where a job with this key must be; without a key, in any."""
        if idempotency_key is None:
            return new_job_id(random.randrange(self._keys.partitions))
        return new_job_id(self._partition_of_key(idempotency_key, tenant))

    async def enqueue(self, job: Job, *, idempotency_key: str | None = None, worker: str | None = None) -> Receipt:
        """Queues a job made with an id of `new_job_id`; with `worker`, for that worker alone as long as it is there.
        Should it go, a generation becomes everybody's, and what no other could do ends with NotReady.

        Repeating it with the same job changes nothing, so a lost reply does no harm. Raises QueueFull,
        IdempotencyConflict (the key has made a job from another body) and BusUnavailable.
        """
        partition = partition_of(job.id)
        if idempotency_key is not None and partition != self._partition_of_key(idempotency_key, job.tenant):
            raise ValueError("a job with an idempotency key needs an id made with it")
        written = await self._enqueuing.write(job)
        call = self._enqueuing.call(job, written, idempotency_key=idempotency_key, worker=worker)
        [reply] = await run(self._link, script("enqueue"), [call], tries=TRIES)
        if reply[0] != b"new":
            await self._enqueuing.take_back(written)
        match reply:
            case [b"new", _]:
                return Receipt(job.id, True)
            case [b"known", owner]:
                return Receipt(owner.decode(), False)
            case [b"conflict", _]:
                raise IdempotencyConflict(KEY_WAS_USED)
            case [b"full", limit]:
                retry_after_s = await self._enqueuing.relief_s(partition, job.model, limit)
                raise QueueFull("Too many jobs are waiting.", retry_after_s=retry_after_s)
        raise AssertionError(reply)

    async def made_by(self, idempotency_key: str, job: Job) -> Receipt | None:
        """The job that this key has made before, if it has made one; `job` need not be complete, but for what makes two
        requests the same. For whom it costs much to complete it: `enqueue` says the same. Raises IdempotencyConflict
        and BusUnavailable."""
        [made] = await ask(
            self._link, [("GET", self._keys.idempotency(partition_of(job.id), job.tenant, idempotency_key))]
        )
        owner, _, fingerprint = (made or b"").decode().partition(" ")
        if not owner or await self.record(owner) is None:
            return None
        if fingerprint != fingerprint_of(job):
            raise IdempotencyConflict(KEY_WAS_USED)
        return Receipt(owner, False)

    async def lines(self, models: Sequence[str]) -> list[dict[str, int]]:
        """How many jobs wait in each line of each of these models. Raises BusUnavailable."""
        loads = [(self._keys.load(k, model)) for model in models for k in range(self._keys.partitions)]
        fields = [f"queued:{line}" for line in LINES]
        replies = iter(await ask(self._link, [("HMGET", load, *fields) for load in loads]) if loads else ())
        counts = [list(islice(replies, self._keys.partitions)) for _ in models]
        return [
            {line: sum(max(0, int(count or 0)) for count in column) for line, *column in zip(LINES, *rows, strict=True)}
            for rows in counts
        ]

    async def check_accepts(self) -> None:
        """Returns when a new job would be taken. Raises BusUnavailable when the server is away, is full, only reads or
        cannot save."""
        for node in await self._link.nodes():
            await run(node, script("accept"), [script("accept").call((), ())])

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

    async def cancel(self, job_id: str) -> JobRecord:
        """Ends a queued job now and asks the worker of a running one to; an ended one stays as it is. Returns what
        is known of the job afterwards. Raises UnknownJob and BusUnavailable."""
        try:
            prefix, key = self._keys.prefix_of(job_id), self._keys.job(job_id)
        except ValueError:
            raise UnknownJob(f"There is no job {job_id!r}.") from None
        cancel = script("cancel")
        [is_known] = await run(self._link, cancel, [cancel.call((key,), (prefix, job_id))], tries=TRIES)
        record = await self.record(job_id) if is_known else None
        if record is None:
            raise UnknownJob(f"There is no job {job_id!r}.")
        return record

    async def forget(self, job_id: str, tenant: str) -> bool:
        """Drops all that is kept of a tenant's job. False: it has not ended, and stays. Raises BusUnavailable."""
        keys = self._keys
        names = (keys.job(job_id), keys.log(job_id), keys.index(partition_of(job_id), tenant))
        forget = script("forget")
        [[is_gone, *objects]] = await run(self._link, forget, [forget.call(names, (job_id,))], tries=TRIES)
        await self._annex.drop(objects)
        return bool(is_gone)

    async def record(self, job_id: str) -> JobRecord | None:
        """What is known of a job, or None when there is none of that id. Raises BusUnavailable, and StoreUnavailable
        when a part of it lies in the store."""
        found = await self._fields(job_id, (*_RECORD_FIELDS, *_TEXTS))
        if found is None:
            return None
        record = await self._record(job_id, found)
        try:
            body, result = await asyncio.gather(*(self._annex.fetch(found[name] or b"") for name in _TEXTS))
        except UnknownFile as error:
            log.warning("a part of a job is gone from the store", job_id=job_id, reason=error.message)
            failure = Failure.of(Unreadable("What is stored of the job cannot be read."))
            lost = {"status": JobStatus.FAILED, "finished": Finished(status="failed", failure=failure)}
            return record.model_copy(update=lost)
        if len(result) <= LARGE:
            return _with_texts(record, body, result)
        return await asyncio.to_thread(_with_texts, record, body, result)  # it takes more than some milliseconds

    async def glance(self, job_id: str) -> JobRecord | None:
        """The same without body and without result where they are large; `is_brief` says that one is left out. What has
        not ended has neither. Raises BusUnavailable."""
        found = await self._fields(job_id, _RECORD_FIELDS, _TEXTS)
        if found is None:
            return None
        record = await self._record(job_id, found)
        if not record.status.is_ended:
            return record
        # It has ended, so they stay as they are.
        small = [name for name in _TEXTS if found[f"{name}_bytes"] <= LARGE]
        texts = await self._fields(job_id, ("status", *small))
        if texts is None:
            return None
        here = {name: texts[name] or b"" for name in small if not Reference.in_place_of(texts[name] or b"")}
        record = _with_texts(record, here.get("body", b""), here.get("result", b""))
        return record.model_copy(update={"is_brief": len(here) < len(_TEXTS)})

    async def _fields(self, job_id: str, names: Sequence[str], measured: Sequence[str] = ()) -> dict[str, Reply] | None:
        """Fields of a job's hash, and of some as `<name>_bytes` how long they are; None when there is no such job."""
        try:
            key = self._keys.job(job_id)
        except ValueError:
            return None
        lengths = [("HSTRLEN", key, name) for name in measured]
        values, *n_bytes = await ask(self._link, [("HMGET", key, *names), *lengths])
        found = dict(zip(names, values, strict=True)) | {
            f"{name}_bytes": length for name, length in zip(measured, n_bytes, strict=True)
        }
        return found if found["status"] is not None else None

    async def _record(self, job_id: str, fields: dict[str, Reply]) -> JobRecord:
        position, eta_s = None, None
        if fields["status"] == b"queued":
            position, eta_s = await self._outlook(partition_of(job_id), fields)
        return _record(job_id, fields, position, eta_s)

    async def page(
        self, tenant: str, *, status: JobStatus | None = None, limit: int = 20, after: str | None = None
    ) -> JobPage:
        """A tenant's durable jobs at a `glance`, newest first, beginning behind the job `after`.

        A page may be short, or empty, and yet not the last: a search for a rare status pauses after some thousand jobs.
        Raises UnknownJob when `after` is no job of the tenant, and BusUnavailable.
        """
        before = await self._place(tenant, after) if after is not None else NEWEST
        indexes = [self._keys.index(each, tenant) for each in range(self._keys.partitions)]
        records: list[JobRecord] = []
        for _ in range(PAGE_STEPS):
            places = await older(self._link, indexes, before, PAGE_STEP)
            matching = await self._matching(places, status)
            read, unread = matching[: limit + 1 - len(records)], matching[limit + 1 - len(records) :]
            found = await asyncio.gather(*(self.glance(place.id) for place in read))
            records += [record for record in found if record is not None]
            if len(records) > limit:
                return JobPage(records[:limit], True, records[limit - 1].id)
            if unread:
                before = read[-1]  # some of those that were read have gone meanwhile: others take their places
            elif len(places) < PAGE_STEP:
                return JobPage(records, False, records[-1].id if records else None)
            else:
                before = places[-1]
        return JobPage(records, True, before.id)

    async def reap(self) -> int:
        """Ends overdue jobs that nobody holds, forgets silent consumers and clears empty lanes away. Returns the number
        of jobs ended. Anybody may call it at any time. Raises BusUnavailable."""
        reap = script("reap")
        n_ended = 0
        for partition in range(self._keys.partitions):
            call = reap.call(
                (self._keys.due(partition), self._keys.lanes(partition)),
                (self._keys.prefix(partition), round(self._settings.lease_s * 1000)),
            )
            is_more = True
            while is_more:
                [[ended, is_more]] = await run(self._link, reap, [call], tries=TRIES)
                n_ended += ended
        return n_ended

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

    async def _place(self, tenant: str, job_id: str) -> Place:
        place = None
        with suppress(ValueError):
            place = await place_of(self._link, self._keys.index(partition_of(job_id), tenant), job_id)
        if place is None:
            raise UnknownJob(f"There is no job {job_id!r}.")
        return place

    async def _matching(self, places: Sequence[Place], status: JobStatus | None) -> list[Place]:
        """Those that still exist, and have the status that is asked for."""
        if not places:
            return []
        states = await ask(self._link, [("HGET", self._keys.job(place.id), "status") for place in places])
        return [
            place
            for place, state in zip(places, states, strict=True)
            if state is not None and (status is None or state.decode() == status)
        ]

    async def _outlook(self, partition: int, fields: dict[str, Reply]) -> tuple[int | None, float | None]:
        """(position, seconds until it runs) of a queued job. An estimate: tenants take turns, so a job with n of its
        own tenant's before it waits for about n of each other's."""
        queue, tenant, model = (fields[name].decode() for name in ("queue", "tenant", "model"))
        if queue == "own":
            return 1, None
        load = f"{self._keys.prefix(partition)}load:{model}"
        turn = f"{self._keys.prefix(partition)}turn:{model}:{queue}"
        names = (
            *(f"taken:{queue}:{tenant}", f"queued:{queue}:{tenant}", f"queued:{queue}"),
            f"queued:{_GOES_FIRST.get(queue, '')}",
            *RATE_FIELDS,
        )
        counts, n_tenants, time = await ask(self._link, [("HMGET", load, *names), ("ZCARD", turn), ("TIME",)])
        taken, own_queued, queued, ahead = (max(0, int(count or 0)) for count in counts[:4])
        # Cancelled jobs keep their places until a claim passes them by: those who wait are a bound too.
        own = max(1, min(int(fields["ticket"]) - taken, own_queued))
        position = max(own, min(own * max(1, n_tenants), queued)) + ahead
        rate = rate_of(counts[4:], seconds(time))
        return position, round(position / rate, 1) if rate else None

    def _partition_of_key(self, idempotency_key: str, tenant: str) -> int:
        return partition_for(f"{part(tenant)}:{idempotency_key}", self._keys.partitions)


_RECORD_FIELDS = (
    "status",
    "model",
    "endpoint",
    "compat",
    "lane",
    "queue",
    "tenant",
    "attempts",
    "created_ms",
    "started_ms",
    "ended_ms",
    "deadline_ms",
    "ticket",
    "metadata",
    "webhook",
)
_TEXTS = ("body", "result")
"""What may be large."""


_GOES_FIRST = {"bulk": "interactive", "bulk_inputs": "inputs"}
"""Whose line is worked off before that of bulk."""


def _record(job_id: str, fields: dict[str, Reply], position: int | None, eta_s: float | None) -> JobRecord:
    return JobRecord(
        id=job_id,
        model=unquote(fields["model"].decode()),
        endpoint=fields["endpoint"].decode(),
        # A job of an older version has none.
        compat=Compat((fields["compat"] or b"today").decode()),
        lane=Lane(fields["lane"].decode()),
        tenant=unquote(fields["tenant"].decode()),
        status=JobStatus(fields["status"].decode()),
        attempts=int(fields["attempts"]),
        created_at=int(fields["created_ms"]) / 1000,
        started_at=int(fields["started_ms"]) / 1000 if fields["started_ms"] else None,
        ended_at=int(fields["ended_ms"]) / 1000 if fields["ended_ms"] else None,
        deadline_at=int(fields["deadline_ms"]) / 1000,
        position=position,
        eta_s=eta_s,
        metadata=json.loads(fields["metadata"]) if fields["metadata"] else {},
        webhook=Webhook.from_json(fields["webhook"]) if fields["webhook"] else None,
    )


def _with_texts(record: JobRecord, body: bytes, result: bytes) -> JobRecord:
    texts = {"body": body.decode() or None, "finished": Finished.from_json(result) if result else None}
    return record.model_copy(update=texts)


def _wake(payload: bytes) -> Wake:
    if payload == b"new":
        return Wake("new")
    if payload == b"released":
        return Wake("released")
    return Wake("cancel", json.loads(payload)["cancel"])
