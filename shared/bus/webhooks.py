"""Every event that is on its way to an endpoint, or was: its deliveries.

They have their endpoint's partition: each change is one script. What is written here is all that a delivery is; who
sends it may die at any moment, and the next finds it due again. Knows no HTTP, not what events mean, and not how often
anything is tried.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from shared.bus.connect import Sender
from shared.bus.endpoints import IS_DISABLED, TRIES, Endpoints, seconds_of, texts_of
from shared.bus.keys import Keys
from shared.bus.script import ask, run, script
from shared.errors import InvalidRequest, UnknownWebhook
from shared.settings import BusSettings
from shared.webhooks import Attempt, Delivery, DeliveryStatus

MAX_ATTEMPTS = 10
"""That a delivery shows."""

MAX_RESPONSE = 500
"""Characters of an answer that are kept with an attempt."""

REPLAYED_AT_ONCE = 200
"""Deliveries, in one call of the script."""
MOST_REPLAYED = 5000
"""In one call of `replay_all`: it takes a second or two. What waits for an endpoint may be hundreds of thousands."""

_PLACE = re.compile(r"([0-9]{1,15})-([A-Za-z0-9_]{1,100})", re.ASCII)


class DeliveryPage(NamedTuple):
    """Some of an endpoint's deliveries, newest first."""

    records: list[Delivery]
    has_more: bool


class Replayed(NamedTuple):
    """What became of some of an endpoint's deliveries that are to be sent again."""

    n_replayed: int
    next: str | None
    """Behind it, the rest; None: there is none."""


class Webhooks(Endpoints):
    def __init__(self, settings: BusSettings, keys: Keys, link: Sender) -> None:
        super().__init__(settings, keys, link)
        self._turn = 0
        """Grows, so that `due` names each endpoint as often as any other."""

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


def _delivery(delivery_id: str, flat: list[bytes]) -> Delivery | None:
    if not flat:
        return None
    fields = texts_of(flat)
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
        next_at=seconds_of(fields.get("next_ms")),
        ended_at=seconds_of(fields.get("ended_ms")),
        reason=fields.get("reason"),
        attempts=tuple(Attempt.from_json(fields[f"attempt:{number}"]) for number in numbers),
    )
