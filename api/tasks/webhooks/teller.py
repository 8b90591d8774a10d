"""Endings become deliveries: to the endpoints of their tenant that want to be told, and to the webhook that the job or
batch brought itself.

The same row makes the same deliveries, which the bus takes once: a crash before the row is acknowledged, and a second
tasks process, change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import structlog

from api.schemas.answers import answers_of
from api.schemas.responses.body import is_cut
from api.webhooks.events import RESPONSES, Event, batch_event, job_event
from shared.batches import BatchStatus
from shared.bus import Bus
from shared.bus.outbox import OutboxRow
from shared.jobs import JobStatus
from shared.webhooks import RESPONSE_EVENTS, Delivery, Endpoint, Webhook

log = structlog.get_logger(__name__)


async def tell(bus: Bus, rows: Sequence[OutboxRow]) -> None:
    """Raises BusUnavailable: then some of it is on its way, and all of it may be told again."""
    audience = Audience(bus)
    deliveries: list[Delivery] = []
    for row in rows:
        try:
            deliveries += await _deliveries(bus, audience, row)
        except ValueError as error:  # what is stored is none of ours: it would keep all others back for ever
            log.warning("not told", row=row.row_id, of=row.id, reason=type(error).__name__)  # its text may have secrets
    await bus.webhooks.post(deliveries)


class Subject(NamedTuple):
    """What ended, as far as it matters here."""

    tenant: str
    endpoint: str
    """The path that a job asks."""
    webhook: Webhook | None


class Audience:
    """Who is told, remembered for as long as one lot of rows takes: most are of few tenants and kinds."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._matching: dict[tuple[str, str], list[Endpoint]] = {}
        self._hidden: dict[tuple[str, str, str], Endpoint] = {}

    async def of(self, tenant: str, event_type: str) -> list[Endpoint]:
        key = (tenant, event_type)
        if key not in self._matching:
            self._matching[key] = await self._bus.webhooks.matching(tenant, event_type)
        return self._matching[key]

    async def hidden(self, tenant: str, webhook: Webhook) -> Endpoint:
        key = (tenant, webhook.url, webhook.secret.value.get_secret_value())
        if key not in self._hidden:
            self._hidden[key] = await self._bus.webhooks.hidden(tenant, webhook)
        return self._hidden[key]


async def _deliveries(bus: Bus, audience: Audience, row: OutboxRow) -> list[Delivery]:
    subject = await _subject(bus, row)
    if subject is None:
        log.warning("nobody is told of what is gone", kind=row.kind, id=row.id)
        return []
    event = await _event(bus, audience, row, subject)
    if event is None:
        return []
    endpoints = await audience.of(subject.tenant, event.type)
    if (webhook := subject.webhook) is not None and (not webhook.events or event.type in webhook.events):
        endpoints = [*endpoints, await audience.hidden(subject.tenant, webhook)]
    return [event.to(endpoint.id) for endpoint in endpoints]


async def _subject(bus: Bus, row: OutboxRow) -> Subject | None:
    """Of a job the row says all itself, so that it is told of also when its record has gone meanwhile."""
    if row.kind == "batch":
        batch = await bus.batches.record(row.id)
        return Subject(batch.tenant, batch.endpoint, batch.webhook) if batch else None
    if row.tenant:
        return Subject(row.tenant, row.endpoint, row.webhook)
    job = await bus.queue.record(row.id)
    return Subject(job.tenant, job.endpoint, job.webhook) if job else None


async def _event(bus: Bus, audience: Audience, row: OutboxRow, subject: Subject) -> Event | None:
    """None when nobody could want it."""
    match row.status:
        case BatchStatus() as status:
            return batch_event(row.id, status, row.at)
        case JobStatus.SUCCEEDED if subject.endpoint in RESPONSES:
            wanted = [await audience.of(subject.tenant, event_type) for event_type in RESPONSE_EVENTS]
            if subject.webhook is None and not any(wanted):
                return None
            return job_event(row.id, subject.endpoint, row.status, row.at, is_cut=await _is_cut_response(bus, row.id))
        case status:
            return job_event(row.id, subject.endpoint, status, row.at)


async def _is_cut_response(bus: Bus, job_id: str) -> bool:
    """Whether it reached its limit of tokens: one that has gone is told of as complete."""
    job = await bus.queue.record(job_id)
    return job is not None and job.finished is not None and any(map(is_cut, answers_of(job.finished)))
