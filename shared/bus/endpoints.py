"""Who wants to be told of endings: endpoints that tenants made by name, and those of webhooks that jobs bring.

An endpoint has its tenant's partition, and each change is one script. Knows no HTTP.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

from pydantic import TypeAdapter

from shared.bus.connect import Reply, Sender
from shared.bus.keys import Keys, part, partition_for
from shared.bus.script import ask, run, script
from shared.errors import InvalidRequest, UnknownWebhook
from shared.ids import Kind, derived_id, new_id, partition_in
from shared.settings import BusSettings
from shared.webhooks import EVENT_TYPES, Endpoint, Secret, Webhook

TRIES = 4
"""For what may be said twice."""

MAX_ENDPOINTS = 100
"""Of a tenant, besides hidden ones."""

MAX_SECRETS = 5
"""Of an endpoint that sign at any time: each makes the header of a delivery longer."""

KEPT_S = 7 * 86400.0
"""For which an ended delivery can be seen and replayed, at least."""

HIDDEN_S = 30 * 86400.0
"""For which a hidden endpoint waits for its first delivery: as long as a delivery waits for somebody who sends it."""

SETTLE_S = 2.0
"""For which whoever disables or deletes an endpoint, or takes from such a one, works on what there was for it."""

IS_DISABLED = "The endpoint is disabled."

SECRETS: TypeAdapter[tuple[Secret, ...]] = TypeAdapter(tuple[Secret, ...])


class EndpointPage(NamedTuple):
    """Some of a tenant's endpoints, newest first."""

    records: list[Endpoint]
    has_more: bool


class EndpointChange(NamedTuple):
    """Of an endpoint, by its tenant. None: as it is."""

    name: str | None = None
    url: str | None = None
    event_types: tuple[str, ...] | None = None
    is_enabled: bool = False
    """True enables one that was disabled."""


class Endpoints:
    def __init__(self, settings: BusSettings, keys: Keys, link: Sender) -> None:
        self._keys = keys
        self._link = link
        self._keep_ms = round(max(settings.retention_s, KEPT_S) * 1000)

    def new_id(self, tenant: str) -> str:
        """Of an endpoint."""
        return new_id(Kind.ENDPOINT, self._partition_of(tenant))

    async def create(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint as it is now; its times are the bus's. Repeating it with the same id changes nothing.

        Raises InvalidRequest when the tenant has MAX_ENDPOINTS of them, and BusUnavailable.
        """
        partition = self._partition_of(endpoint.tenant)
        names = (self._keys.endpoint(endpoint.id), self._keys.endpoints(partition, endpoint.tenant))
        arguments = (
            *(endpoint.id, part(endpoint.tenant), endpoint.name, endpoint.url, json.dumps(endpoint.event_types)),
            *(SECRETS.dump_json(endpoint.secrets), MAX_ENDPOINTS),
        )
        if not await self._run("endpoints/create", names, arguments):
            raise InvalidRequest(f"There are {MAX_ENDPOINTS} webhook endpoints, and no more can be made.")
        return await self._known(endpoint.id)

    async def hidden(self, tenant: str, webhook: Webhook) -> Endpoint:
        """The endpoint of a webhook that a job or batch brought itself: the same for the same URL and secret. If it was
        disabled it is enabled. Raises BusUnavailable."""
        secret = webhook.secret.value.get_secret_value()
        partition = self._partition_of(tenant)
        endpoint_id = derived_id(Kind.ENDPOINT, partition, "hidden", tenant, webhook.url, secret)
        arguments = (
            *(part(tenant), webhook.url, json.dumps(EVENT_TYPES), SECRETS.dump_json((webhook.secret,))),
            round(HIDDEN_S * 1000),
        )
        await self._run("endpoints/hidden", (self._keys.endpoint(endpoint_id),), arguments)
        return await self._known(endpoint_id)

    async def record(self, endpoint_id: str, tenant: str | None = None) -> Endpoint | None:
        """An endpoint; for a tenant only one of its own that it made by name. Raises BusUnavailable."""
        try:
            key = self._keys.endpoint(endpoint_id)
        except ValueError:
            return None
        [fields] = await ask(self._link, [("HGETALL", key)])
        endpoint = _endpoint(endpoint_id, fields)
        if endpoint is None or (tenant is not None and (endpoint.is_hidden or endpoint.tenant != tenant)):
            return None
        return endpoint

    async def all_of(self, tenant: str) -> list[Endpoint]:
        """What a tenant made by name, newest first. Raises BusUnavailable."""
        index = self._keys.endpoints(self._partition_of(tenant), tenant)
        [names] = await ask(self._link, [("ZREVRANGE", index, 0, -1)])
        ids = [name.decode() for name in names]
        replies = await ask(self._link, [("HGETALL", self._keys.endpoint(each)) for each in ids]) if ids else []
        endpoints = (_endpoint(each, flat) for each, flat in zip(ids, replies, strict=True))
        return [endpoint for endpoint in endpoints if endpoint is not None]

    async def page(self, tenant: str, *, limit: int = 20, after: str | None = None) -> EndpointPage:
        """A tenant's endpoints, beginning behind `after`. Raises UnknownWebhook when that is none of them, and
        BusUnavailable."""
        endpoints = await self.all_of(tenant)
        ids = [endpoint.id for endpoint in endpoints]
        if after is not None and after not in ids:
            raise UnknownWebhook("There is no such webhook endpoint.")
        start = ids.index(after) + 1 if after is not None else 0
        return EndpointPage(endpoints[start : start + limit], len(endpoints) > start + limit)

    async def matching(self, tenant: str, event_type: str) -> list[Endpoint]:
        """A tenant's endpoints that want to be told, disabled ones too. Raises BusUnavailable."""
        return [endpoint for endpoint in await self.all_of(tenant) if event_type in endpoint.event_types]

    async def update(self, endpoint_id: str, change: EndpointChange) -> Endpoint:
        """Deliveries that wait go to the new URL, when their time comes. Raises UnknownWebhook and BusUnavailable."""
        changed = {
            "name": change.name,
            "url": change.url,
            "events": None if change.event_types is None else json.dumps(change.event_types),
        }
        pairs = [text for name, value in changed.items() if value is not None for text in (name, value)]
        arguments = (self._prefix(endpoint_id), endpoint_id, "1" if change.is_enabled else "0", *pairs)
        return await self._changed(endpoint_id, "endpoints/update", arguments)

    async def rotate(self, endpoint_id: str, secret: Secret, *, grace_s: float = 0.0) -> Endpoint:
        """`secret` signs from now on, and those before it for `grace_s` seconds more. Repeating it with the same one
        changes nothing. Raises UnknownWebhook and BusUnavailable."""
        arguments = (secret.value.get_secret_value(), round(grace_s * 1000), MAX_SECRETS)
        return await self._changed(endpoint_id, "endpoints/rotate", arguments)

    async def disable(self, endpoint_id: str, reason: str) -> None:
        """Nothing is sent there any more: what comes is given up at once, and what waits by the time that it would be
        taken. Raises BusUnavailable."""
        names = (
            self._keys.endpoint(endpoint_id),
            self._keys.schedule(endpoint_id),
            self._keys.schedules(partition_in(endpoint_id, Kind.ENDPOINT)),
        )
        await self._run("endpoints/disable", names, (endpoint_id, reason))
        await self._settle(endpoint_id)

    async def rest(self, endpoint_id: str, for_s: float) -> None:
        """Nothing is sent there for that time, or until its tenant changes the URL or asks for a replay.

        Raises BusUnavailable.
        """
        arguments = (self._prefix(endpoint_id), endpoint_id, round(for_s * 1000))
        await self._run("endpoints/rest", (self._keys.endpoint(endpoint_id),), arguments)

    async def delete(self, endpoint_id: str, tenant: str) -> None:
        """With all its deliveries, as `disable` gives them up; nothing when there is none. Raises BusUnavailable."""
        partition = partition_in(endpoint_id, Kind.ENDPOINT)
        names = (
            self._keys.endpoint(endpoint_id),
            self._keys.endpoints(partition, tenant),
            self._keys.schedules(partition),
        )
        await self._run("endpoints/delete", names, (endpoint_id,))
        await self._settle(endpoint_id)

    async def _settle(self, endpoint_id: str) -> None:
        """Until nothing is left to settle, or for SETTLE_S: it is due, and when its deliveries are taken next, it goes
        on."""
        names, until = (self._keys.endpoint(endpoint_id),), time.monotonic() + SETTLE_S
        arguments = (self._prefix(endpoint_id), endpoint_id, self._keep_ms, IS_DISABLED)
        while await self._run("endpoints/settle", names, arguments) and time.monotonic() < until:
            pass

    async def _changed(self, endpoint_id: str, name: str, arguments: Sequence[str | int]) -> Endpoint:
        if not await self._run(name, (self._keys.endpoint(endpoint_id),), arguments):
            raise UnknownWebhook("There is no such webhook endpoint.")
        return await self._known(endpoint_id)

    async def _known(self, endpoint_id: str) -> Endpoint:
        endpoint = await self.record(endpoint_id)
        if endpoint is None:
            raise UnknownWebhook("There is no such webhook endpoint.")
        return endpoint

    async def _run(self, name: str, names: Sequence[str], arguments: Sequence[str | bytes | int | float]) -> Reply:
        [reply] = await run(self._link, script(name), [script(name).call(names, arguments)], tries=TRIES)
        return reply

    def _prefix(self, endpoint_id: str) -> str:
        return self._keys.prefix(partition_in(endpoint_id, Kind.ENDPOINT))

    def _partition_of(self, tenant: str) -> int:
        return partition_for(part(tenant), self._keys.partitions)


def _endpoint(endpoint_id: str, flat: list[bytes]) -> Endpoint | None:
    if not flat:
        return None
    fields = texts_of(flat)
    return Endpoint(
        id=endpoint_id,
        tenant=unquote(fields["tenant"]),
        name=fields["name"],
        url=fields["url"],
        event_types=tuple(json.loads(fields["events"])),
        secrets=SECRETS.validate_json(fields["secrets"]),
        created_at=int(fields["created_ms"]) / 1000,
        updated_at=int(fields["updated_ms"]) / 1000,
        is_hidden="hidden" in fields,
        disabled_at=seconds_of(fields.get("disabled_ms")),
        disabled_reason=fields.get("disabled_reason"),
        failing_since=seconds_of(fields.get("failing_ms")),
    )


def texts_of(flat: list[bytes]) -> dict[str, str]:
    return {name.decode(): text.decode() for name, text in zip(flat[::2], flat[1::2], strict=True)}


def seconds_of(milliseconds: str | None) -> float | None:
    return None if milliseconds is None else int(milliseconds) / 1000
