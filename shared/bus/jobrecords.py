"""Jobs as anybody may look at them: one by its id, or a tenant's, newest first. Changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import unquote

import structlog

from shared.bus.annex import LARGE, Annex, Reference
from shared.bus.connect import Reply, Sender
from shared.bus.enqueuing import RATE_FIELDS, rate_of, seconds
from shared.bus.keys import Keys
from shared.bus.places import NEWEST, Place, older, place_of
from shared.bus.script import ask
from shared.errors import UnknownFile, UnknownJob, Unreadable
from shared.events import Failure, Finished
from shared.jobs import Compat, JobRecord, JobStatus, Lane, partition_of
from shared.webhooks import Webhook

PAGE_STEP, PAGE_STEPS = 100, 50
"""Jobs that a listing looks at in one round, and how many rounds it takes for one page at most."""

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

log = structlog.get_logger(__name__)


class JobPage(NamedTuple):
    """Some of a tenant's jobs, newest first."""

    records: list[JobRecord]
    has_more: bool
    last_id: str | None
    """The job behind which the next page begins."""


class JobRecords:
    def __init__(self, keys: Keys, link: Sender, annex: Annex) -> None:
        self._keys = keys
        self._link = link
        self._annex = annex

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
