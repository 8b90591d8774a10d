"""What `enqueue.lua` is told of a job, and when a queue that was full has room again.

Shared by the queue and by the batches, whose lines become jobs with the move of a cursor.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from shared.bus.annex import Annex, Reference
from shared.bus.connect import Command, Reply, Sender
from shared.bus.keys import Keys, part
from shared.bus.script import ask, script
from shared.jobs import VERSION_OF_REFERENCES, Generation, Job, partition_of
from shared.settings import BusSettings

IMAGE_BYTES = 4096
"""That an image counts for when tenants are compared, however large its file is: a model sees some hundred tokens."""

UNKNOWN_LENGTH = 512
"""Tokens that a request without a limit is taken to ask for, when tenants are compared."""

RATE_WINDOW_S = 30.0
"""Over which `finish.lua` smooths the rate of endings."""

RATE_FIELDS = ("done", "done_ms", "done_since_ms")


class PlanLine(NamedTuple):
    """Where a job comes from that is a line of a batch, and by whose right."""

    batch_id: str
    token: str
    """Of the hold."""
    start: int
    """In bytes of the plan."""
    stop: int


class Written(NamedTuple):
    """A job as its hash is to have it."""

    request: str
    body: str
    """Each the text, or a reference to it."""
    cost: int
    """What it takes from its tenant's share."""
    store: str
    """The mark of the store that its maker reads, if any."""
    version: int


class Enqueuing:
    def __init__(self, settings: BusSettings, keys: Keys, link: Sender, annex: Annex) -> None:
        self._settings = settings
        self._keys = keys
        self._link = link
        self._annex = annex

    async def write(self, job: Job) -> Written:
        """What is large is in the store by the time that this returns, before anything refers to it."""
        text, body = job.model_dump_json(exclude={"body"}), job.body or ""
        cost, mark = _cost(job, text), self._annex.mark
        text = await self._annex.put_request(job.id, job.model, "request", text)
        body = await self._annex.put_request(job.id, job.model, "body", body)
        is_elsewhere = Reference.in_place_of(text) is not None
        version = max(job.version, VERSION_OF_REFERENCES) if is_elsewhere else job.version
        return Written(text, body, cost, mark, version)

    async def take_back(self, written: Written) -> None:
        """Of a job that is certain not to be made."""
        await self._annex.drop((written.request, written.body))

    def call(
        self,
        job: Job,
        written: Written,
        *,
        idempotency_key: str | None = None,
        worker: str | None = None,
        line: PlanLine | None = None,
    ) -> Command:
        return script("enqueue").call(
            self._names(job, idempotency_key, worker), self._arguments(job, written, idempotency_key, worker, line)
        )

    async def relief_s(self, partition: int, model: str, limit: int) -> float:
        """Seconds until about a hundredth of a full queue has been worked off. Raises BusUnavailable."""
        rates, time = await ask(self._link, [("HMGET", self._keys.load(partition, model), *RATE_FIELDS), ("TIME",)])
        rate = rate_of(rates, seconds(time))
        return min(300.0, max(1.0, limit / 100 / rate)) if rate else 30.0

    def _names(self, job: Job, idempotency_key: str | None, worker: str | None) -> list[str]:
        keys, partition = self._keys, partition_of(job.id)
        own = keys.own(partition, worker) if worker else None
        names = [
            keys.job(job.id),
            keys.load(partition, job.model),
            own or keys.lane(partition, job.model, job.queue, job.tenant),
            keys.due(partition),
            keys.lanes(partition),
            keys.turn(partition, job.model, job.queue),
            keys.index(partition, job.tenant),
            keys.owners(partition, job.model),
        ]
        if idempotency_key is not None:
            names.append(keys.idempotency(partition, job.tenant, idempotency_key))
        return names

    def _arguments(
        self, job: Job, written: Written, idempotency_key: str | None, worker: str | None, line: PlanLine | None
    ) -> list[str | bytes | int | float]:
        settings = self._settings
        return [
            job.id,
            part(job.model),
            job.lane.value,
            part(job.tenant),
            written.cost,
            round(job.deadline_s * 1000),
            # A record that went before its log would leave followers without an ending.
            round(max(settings.retention_s, settings.log_retention_s) * 1000),
            round(settings.log_retention_s * 1000),
            self._share(settings.max_queued),
            self._share(settings.max_queued_per_tenant),
            self._keys.wake(partition_of(job.id), job.model),
            fingerprint_of(job) if idempotency_key is not None else "",
            "own" if worker else job.queue,
            written.request,
            written.body,
            job.endpoint,
            json.dumps(job.metadata) if job.metadata else "",
            "1" if job.is_durable else "0",
            written.version,
            1 if worker else job.n_places,
            "" if job.is_bound else job.queue,
            job.compat.value,
            job.webhook.to_json() if job.webhook else "",
            written.store,
            *(line or ()),
        ]

    def _share(self, limit: int) -> int:
        """One partition's share of a limit of the whole queue."""
        return math.ceil(limit / self._keys.partitions)


def fingerprint_of(job: Job) -> str:
    """Two requests with one idempotency key must have this in common."""
    # A body names its model as the client did: the one that serves it may be another by the time it is said again.
    what = (job.body,) if job.body is not None else (job.model, job.request.model_dump_json())
    told = (job.webhook.to_json(),) if job.webhook else ()
    parts = (job.endpoint, job.lane.value, json.dumps(job.metadata, sort_keys=True), *what, *told)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def rate_of(fields: Sequence[Reply], now_s: float) -> float | None:
    """Jobs that end in a second, from the fading counter of `finish.lua`; None when nothing ended of late."""
    if not all(fields):
        return None
    done, done_s, since_s = float(fields[0]), int(fields[1]) / 1000, int(fields[2]) / 1000
    weight = done * math.exp(-max(0.0, now_s - done_s) / RATE_WINDOW_S)
    # A counter that began a moment ago has not filled its window yet.
    filled = 1 - math.exp(-max(1.0, now_s - since_s) / RATE_WINDOW_S)
    return weight / (RATE_WINDOW_S * filled) if weight > 0.01 else None


def seconds(time: list[bytes]) -> float:
    """A reply to TIME."""
    return int(time[0]) + int(time[1]) / 1e6


def _cost(job: Job, request: str) -> int:
    """What a job takes from its tenant's share: bytes asked about, which all choices share, and tokens asked for."""
    if not isinstance(job.request, Generation):
        return len(request)
    n_predict = job.request.n_predict
    images = job.request.media.images if job.request.media else ()
    n_bytes = len(request) - sum(len(image.data) for image in images) + IMAGE_BYTES * len(images)
    return n_bytes + job.request.n_sequences * (n_predict if n_predict >= 0 else UNKNOWN_LENGTH)
