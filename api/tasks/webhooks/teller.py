"""Endings become deliveries: to the endpoints of their tenant that want to be told, and to the webhook that the job or
batch brought itself.

The same row makes the same deliveries, which the bus takes once: a crash before the row is acknowledged, and a second
tasks process, change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import structlog

from api.schemas.answers import answers_of
from api.schemas.responses.body import is_cut
from api.webhooks.events import RESPONSES, Event, batch_event, job_event
from shared.batches import BatchStatus
from shared.bus import Bus
from shared.bus.outbox import OutboxRow
from shared.errors import StoreUnavailable
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
    row = row if row.tenant else await _completed(bus, row)
    event = await _event(bus, audience, row)
    if event is None:
        return []
    endpoints = await audience.of(row.tenant, event.type)
    if row.webhook is not None and (not row.webhook.events or event.type in row.webhook.events):
        endpoints = [*endpoints, await audience.hidden(row.tenant, row.webhook)]
    return [event.to(endpoint.id) for endpoint in endpoints]


async def _completed(bus: Bus, row: OutboxRow) -> OutboxRow:
    """A row of an older version, which says no more of a job than its id. ValueError when that one has gone."""
    job = await bus.queue.glance(row.id)
    if job is None:
        raise ValueError("the job has gone")
    return row._replace(tenant=job.tenant, endpoint=job.endpoint, webhook=job.webhook)


async def _event(bus: Bus, audience: Audience, row: OutboxRow) -> Event | None:
    """None when nobody could want it."""
    match row.status:
        case BatchStatus() as status:
            return batch_event(row.id, status, row.at)
        case JobStatus.SUCCEEDED if row.endpoint in RESPONSES:
            wanted = [await audience.of(row.tenant, event_type) for event_type in RESPONSE_EVENTS]
            if row.webhook is None and not any(wanted):
                return None
            return job_event(row.id, row.endpoint, row.status, row.at, is_cut=await _is_cut_response(bus, row.id))
        case status:
            return job_event(row.id, row.endpoint, status, row.at)


async def _is_cut_response(bus: Bus, job_id: str) -> bool:
    """Whether it reached its limit of tokens. One that has gone is told of as complete, and so is one too large for
    Redis while the store is away: all other endings would have to wait for it."""
    job = await bus.queue.glance(job_id)
    if job is not None and job.finished is None:
        with suppress(StoreUnavailable):
            job = await bus.queue.record(job_id)
    return job is not None and job.finished is not None and any(map(is_cut, answers_of(job.finished)))
