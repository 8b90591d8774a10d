"""Jobs that outlive their makers: how they are made, and how whoever comes hears them from their beginning.

Knows no HTTP, and not how answers look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from api.context import Context
from api.pinning import pinned
from api.schemas.ask import Ask, Heard
from api.schemas.pictures import without_files
from shared.bus import Reader, Receipt
from shared.errors import UnknownJob
from shared.events import Finished
from shared.jobs import Job, JobRecord, partition_of


def kept_body(fields: Mapping[str, Any], ask: Ask) -> str:
    """Of a client's JSON, what its answer is rendered from later."""
    return json.dumps(without_files(fields, ask.album), ensure_ascii=False, separators=(",", ":"))


async def made_before(context: Context, job: Job, ask: Ask, key: str | None) -> Receipt | None:
    """What this key has made before, if somebody outside would be asked to make it: images may be gone by now, and the
    host of a webhook may lead elsewhere. Raises what the queue raises."""
    asks_outside = bool(ask.album.pictures) or job.webhook is not None
    return await context.bus.queue.made_by(key, job) if key and asks_outside else None


async def enqueue(context: Context, job: Job, ask: Ask, *, key: str | None = None) -> Receipt:
    """Queues a job that was asked for so, with its images, for the worker that it names or for all. `key` is for
    saying it twice. Raises InvalidRequest and NotSupported for its images, and what the queue raises."""
    placed = await context.images.place(ask, job.model)
    pin = pinned(context.fleet, job.model, placed.request)
    made = job.model_copy(update={"request": pin.request})
    return await context.bus.queue.enqueue(made, idempotency_key=key, worker=pin.worker)


async def record_of(context: Context, tenant: str, job_id: str, *, is_glance: bool = False) -> JobRecord:
    """`is_glance`: its answer is of no interest yet. Raises UnknownJob for another tenant's job exactly as for none."""
    try:
        partition_of(job_id)
    except ValueError:
        record = None
    else:
        queue = context.bus.queue
        record = await (queue.glance if is_glance else queue.record)(job_id)
    if record is None or record.tenant != tenant:
        raise UnknownJob("There is no such job")
    return record


class KeptJob:
    """What a reader hears of one job. It ends like any other thing that is said, also when the job failed."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.is_over = False

    async def next(self, timeout_s: float) -> Heard | None:
        said = await self._reader.next(timeout_s)
        if said is None:
            return None
        self.is_over = isinstance(said.event, Finished)
        return Heard(0, said.number, said.event)
