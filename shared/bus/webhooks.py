"""Who wants to be told of endings, and every event that is on its way to them or was.

An endpoint has its tenant's partition and so do its deliveries: each change is one script. What is written here is all
that a delivery is; who sends it may die at any moment, and the next finds it due again. Knows no HTTP, not what events
mean, and not how often anything is tried.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import time
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from pydantic import TypeAdapter

from shared.bus.connect import Reply, Sender
from shared.bus.keys import Keys, part, partition_for
from shared.bus.script import ask, run, script
from shared.errors import InvalidRequest, UnknownWebhook
from shared.ids import Kind, derived_id, new_id, partition_in
from shared.settings import BusSettings
from shared.webhooks import EVENT_TYPES, Attempt, Delivery, DeliveryStatus, Endpoint, Secret, Webhook

TRIES = 4
"""For what may be said twice."""

MAX_ENDPOINTS = 100
"""Of a tenant, besides hidden ones."""

MAX_SECRETS = 5
"""Of an endpoint that sign at any time: each makes the header of a delivery longer."""

MAX_ATTEMPTS = 10
"""That a delivery shows."""

MAX_RESPONSE = 500
"""Characters of an answer that are kept with an attempt."""

KEPT_S = 7 * 86400.0
"""For which an ended delivery can be seen and replayed, at least."""

HIDDEN_S = 30 * 86400.0
"""For which a hidden endpoint waits for its first delivery: as long as a delivery waits for somebody who sends it."""

SETTLE_S = 2.0
"""For which whoever disables or deletes an endpoint, or takes from such a one, works on what there was for it."""

REPLAYED_AT_ONCE = 200
"""Deliveries, in one call of the script."""
MOST_REPLAYED = 5000
"""In one call of `replay_all`: it takes a second or two. What waits for an endpoint may be hundreds of thousands."""

_PLACE = re.compile(r"([0-9]{1,15})-([A-Za-z0-9_]{1,100})", re.ASCII)

IS_DISABLED = "The endpoint is disabled."

SECRETS: TypeAdapter[tuple[Secret, ...]] = TypeAdapter(tuple[Secret, ...])


class DeliveryPage(NamedTuple):
    """Some of an endpoint's deliveries, newest first."""

    records: list[Delivery]
    has_more: bool


class Replayed(NamedTuple):
    """What became of some of an endpoint's deliveries that are to be sent again."""

    n_replayed: int
    next: str | None
    """Behind it, the rest; None: there is none."""


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


class Webhooks:
    def __init__(self, settings: BusSettings, keys: Keys, link: Sender) -> None:
        self._keys = keys
        self._link = link
        self._keep_ms = round(max(settings.retention_s, KEPT_S) * 1000)
        self._turn = 0
        """Grows, so that `due` names each endpoint as often as any other."""

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

    async def post(self, deliveries: Sequence[Delivery]) -> None:
        """Sends events on their way: each is due now, and once however often it is posted. To a disabled endpoint they
        are stored as given up; to one that is gone, not at all. Raises BusUnavailable."""
        calls = [
            script("deliveries/post").call(
                (self._keys.endpoint(delivery.endpoint_id), self._keys.delivery(delivery.id)),
                (
                    *(self._prefix(delivery.endpoint_id), delivery.endpoint_id, delivery.id, delivery.event_id),
                    *(delivery.event_type, delivery.body, self._keep_ms, IS_DISABLED),
                ),
            )
            for delivery in deliveries
        ]
        if calls:
            await run(self._link, script("deliveries/post"), calls, tries=TRIES)

    async def due(self, limit: int) -> list[str]:
        """Endpoints that have deliveries whose time has come, `limit` at most; where there are more, others come at the
        next call. Raises BusUnavailable."""
        due = script("endpoints/due")
        calls = [
            due.call((self._keys.schedules(partition),), (limit, self._turn))
            for partition in range(self._keys.partitions)
        ]
        self._turn += limit
        found = [name.decode() for names in await run(self._link, due, calls, tries=TRIES) for name in names]
        return found if len(found) <= limit else random.sample(found, limit)

    async def take(self, endpoint_id: str, limit: int) -> list[Delivery]:
        """Deliveries of an endpoint whose time has come, the longest due first. It may be called again: they stay due
        until `attempted` says otherwise. Those of an endpoint that is disabled or gone are settled instead.

        Raises BusUnavailable.
        """
        names = (self._keys.endpoint(endpoint_id), self._keys.schedule(endpoint_id))
        takes_any, ids = await self._run("deliveries/take", names, (self._prefix(endpoint_id), endpoint_id, limit))
        if not takes_any:
            await self._settle(endpoint_id)
        return await self._read(name.decode() for name in ids)

    async def attempted(
        self, delivery_id: str, endpoint_id: str, attempt: Attempt, *, status: DeliveryStatus, after_s: float | None
    ) -> None:
        """How a try went, and what the delivery is now: pending and due after that time, or over. Saying it again with
        the same attempt changes nothing. Raises BusUnavailable."""
        shown = attempt.model_copy(update={"response": attempt.response[:MAX_RESPONSE]})
        after_ms = "" if after_s is None else round(after_s * 1000)
        names = (self._keys.endpoint(endpoint_id), self._keys.delivery(delivery_id))
        arguments = (
            *(self._prefix(endpoint_id), endpoint_id, delivery_id, shown.to_json(), status.value, after_ms),
            *(self._keep_ms, MAX_ATTEMPTS, IS_DISABLED),
        )
        await self._run("deliveries/attempted", names, arguments)

    async def delivery(self, delivery_id: str, endpoint_id: str | None = None) -> Delivery | None:
        """A delivery, of that endpoint if one is named. Raises BusUnavailable."""
        try:
            self._keys.delivery(delivery_id)
        except ValueError:
            return None
        found = await self._read([delivery_id])
        return found[0] if found and endpoint_id in (None, found[0].endpoint_id) else None

    async def deliveries(
        self,
        endpoint_id: str,
        *,
        status: DeliveryStatus | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 20,
        after: str | None = None,
    ) -> DeliveryPage:
        """An endpoint's deliveries made from `since` to `until` (Unix seconds, both included), beginning behind
        `after`. Raises UnknownWebhook when that is none of them, and BusUnavailable."""
        before = await self._place(endpoint_id, after) if after is not None else None
        statuses = [status] if status else list(DeliveryStatus)
        places = await self._newest(endpoint_id, statuses, _Span.of(since, until), before, limit + 1)
        records = await self._read(place.delivery_id for place in places[:limit])
        return DeliveryPage(records, len(places) > limit)

    async def replay(self, delivery_id: str) -> Delivery:
        """Sends a delivery again from the start, whatever became of it. Raises UnknownWebhook, InvalidRequest when its
        endpoint is disabled, and BusUnavailable."""
        delivery = await self.delivery(delivery_id)
        if delivery is None:
            raise UnknownWebhook("There is no such delivery.")
        await self._check_takes_any(delivery.endpoint_id)
        await self._replay(delivery.endpoint_id, [delivery_id])
        return await self.delivery(delivery_id) or delivery

    async def replay_all(
        self,
        endpoint_id: str,
        since: float | None = None,
        until: float | None = None,
        statuses: Collection[DeliveryStatus] = (DeliveryStatus.FAILED,),
        *,
        after: str | None = None,
        most: int = MOST_REPLAYED,
    ) -> Replayed:
        """The same of those that were made from `since` to `until` (Unix seconds, both included) and have one of
        `statuses`, newest first: about `most` of them, beginning behind `after`, which is a `Replayed.next`.

        Broken off, it may be said again. ValueError for another `after`; else raises as `replay`."""
        before = _Place.of(after) if after is not None else None
        await self._check_takes_any(endpoint_id)
        count = n_seen = 0
        while True:
            span = _Span.of(since, until)
            places = await self._newest(endpoint_id, statuses, span, before, REPLAYED_AT_ONCE + 1)
            turn = places[:REPLAYED_AT_ONCE]
            if turn:
                count += await self._replay(endpoint_id, [place.delivery_id for place in turn])
            if len(places) == len(turn):
                return Replayed(count, None)
            before = turn[-1]
            n_seen += len(turn)
            if n_seen >= most:
                return Replayed(count, str(before))

    async def _replay(self, endpoint_id: str, ids: Sequence[str]) -> int:
        arguments = [self._prefix(endpoint_id), endpoint_id, str(self._keep_ms), *ids]
        return int(await self._run("deliveries/replay", (self._keys.endpoint(endpoint_id),), arguments))

    async def _check_takes_any(self, endpoint_id: str) -> None:
        endpoint = await self._known(endpoint_id)
        if endpoint.disabled_at is not None:
            raise InvalidRequest("The endpoint is disabled: enable it first.")

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

    async def _read(self, ids: Iterable[str]) -> list[Delivery]:
        """Those that are still there."""
        names = list(ids)
        if not names:
            return []
        replies = await ask(self._link, [("HGETALL", self._keys.delivery(name)) for name in names])
        found = (_delivery(name, flat) for name, flat in zip(names, replies, strict=True))
        return [delivery for delivery in found if delivery is not None]

    async def _place(self, endpoint_id: str, delivery_id: str) -> _Place:
        delivery = await self.delivery(delivery_id, endpoint_id)
        if delivery is None:
            raise UnknownWebhook("There is no such delivery.")
        return _Place(round(delivery.created_at * 1000), delivery_id)

    async def _newest(
        self, endpoint_id: str, statuses: Collection[DeliveryStatus], span: _Span, before: _Place | None, limit: int
    ) -> list[_Place]:
        """As `_older`, of several statuses."""
        found = await asyncio.gather(*(self._older(endpoint_id, each, span, before, limit) for each in set(statuses)))
        return sorted((place for places in found for place in places), reverse=True)[:limit]

    async def _older(
        self, endpoint_id: str, status: DeliveryStatus, span: _Span, before: _Place | None, limit: int
    ) -> list[_Place]:
        """The youngest of a status that are older than `before`, youngest first; fewer than `limit` only where there
        are no more."""
        names = self._keys.deliveries(endpoint_id, status)
        latest = span.latest if before is None else min(span.latest, before.created_ms)
        found: list[_Place] = []
        offset = 0
        while True:
            query = ("ZREVRANGEBYSCORE", names, latest, span.earliest, "WITHSCORES", "LIMIT", offset, limit)
            [flat] = await ask(self._link, [query])
            places = [_Place(int(ms), name.decode()) for name, ms in zip(flat[::2], flat[1::2], strict=True)]
            found += [place for place in places if before is None or place < before]
            if len(places) < limit or len(found) >= limit:
                return found[:limit]
            offset += limit  # many were made in one millisecond

    async def _run(self, name: str, names: Sequence[str], arguments: Sequence[str | bytes | int | float]) -> Reply:
        [reply] = await run(self._link, script(name), [script(name).call(names, arguments)], tries=TRIES)
        return reply

    def _prefix(self, endpoint_id: str) -> str:
        return self._keys.prefix(partition_in(endpoint_id, Kind.ENDPOINT))

    def _partition_of(self, tenant: str) -> int:
        return partition_for(part(tenant), self._keys.partitions)


class _Place(NamedTuple):
    """Where a delivery stands among its endpoint's: by its time, and by its id among those of one millisecond."""

    created_ms: float
    delivery_id: str

    @classmethod
    def of(cls, text: str) -> _Place:
        """Of what `str` made. ValueError for anything else."""
        if not (found := _PLACE.fullmatch(text)):
            raise ValueError("this is no place")
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"{self.created_ms}-{self.delivery_id}"


class _Span(NamedTuple):
    """Of time in Unix milliseconds, both ends included."""

    earliest: float
    latest: float

    @classmethod
    def of(cls, since: float | None, until: float | None) -> _Span:
        """Of Unix seconds."""
        return cls(-math.inf if since is None else since * 1000, math.inf if until is None else until * 1000)


def _endpoint(endpoint_id: str, flat: list[bytes]) -> Endpoint | None:
    if not flat:
        return None
    fields = _texts(flat)
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
        disabled_at=_seconds(fields.get("disabled_ms")),
        disabled_reason=fields.get("disabled_reason"),
        failing_since=_seconds(fields.get("failing_ms")),
    )


def _delivery(delivery_id: str, flat: list[bytes]) -> Delivery | None:
    if not flat:
        return None
    fields = _texts(flat)
    numbers = sorted(int(name.removeprefix("attempt:")) for name in fields if name.startswith("attempt:"))
    return Delivery(
        id=delivery_id,
        endpoint_id=fields["endpoint"],
        event_id=fields["event"],
        event_type=fields["type"],
        body=fields["body"],
        created_at=int(fields["created_ms"]) / 1000,
        status=DeliveryStatus(fields["status"]),
        n_attempts=int(fields["n_attempts"]),
        next_at=_seconds(fields.get("next_ms")),
        ended_at=_seconds(fields.get("ended_ms")),
        reason=fields.get("reason"),
        attempts=tuple(Attempt.from_json(fields[f"attempt:{number}"]) for number in numbers),
    )


def _texts(flat: list[bytes]) -> dict[str, str]:
    return {name.decode(): text.decode() for name, text in zip(flat[::2], flat[1::2], strict=True)}


def _seconds(milliseconds: str | None) -> float | None:
    return None if milliseconds is None else int(milliseconds) / 1000
