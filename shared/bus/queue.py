"""Jobs on their way to a worker and back: made and cancelled here, worked on in `claims`, looked at in `jobrecords`.

Every change of a job's state is one script. Knows nothing of what requests mean, and nothing of HTTP or llama.cpp.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from shared.bus.annex import Annex
from shared.bus.claims import TRIES, Claims
from shared.bus.connect import Sender
from shared.bus.enqueuing import Enqueuing, fingerprint_of
from shared.bus.jobrecords import JobRecords
from shared.bus.keys import Keys, part, partition_for
from shared.bus.script import ask, run, script
from shared.bus.subscriber import Listener
from shared.errors import IdempotencyConflict, QueueFull, UnknownJob
from shared.jobs import Job, JobRecord, new_job_id, partition_of
from shared.settings import BusSettings

LINES = ("interactive", "bulk", "inputs", "bulk_inputs", "quick", "own")
"""Where jobs wait: the lanes, what needs no slot, and what is meant for one worker."""

KEY_WAS_USED = "The idempotency key was used with another body."


class Receipt(NamedTuple):
    job_id: str
    is_new: bool
    """False: the idempotency key had made this job before."""


class Queue(Claims, JobRecords):
    def __init__(self, settings: BusSettings, keys: Keys, link: Sender, subscriber: Listener, annex: Annex) -> None:
        Claims.__init__(self, settings, keys, link, subscriber, annex)
        JobRecords.__init__(self, keys, link, annex)
        self._enqueuing = Enqueuing(settings, keys, link, annex)

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

    def _partition_of_key(self, idempotency_key: str, tenant: str) -> int:
        return partition_for(f"{part(tenant)}:{idempotency_key}", self._keys.partitions)
