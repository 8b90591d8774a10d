"""A tenant's things by their age, over all partitions: where pages of lists come from. Knows nothing of the things."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import NamedTuple

from shared.bus.connect import Sender
from shared.bus.script import ask


class Place(NamedTuple):
    """Where a thing stands among its tenant's: by its time, and by its id among those of one millisecond."""

    created_ms: float
    id: str


NEWEST = Place(math.inf, "")
"""Before all of them, where the youngest come first."""
OLDEST = Place(-math.inf, "")
"""The same where the oldest do."""


async def place_of(link: Sender, index: str, thing_id: str) -> Place | None:
    """From the index, which still has those of things that have gone since they were listed. Raises BusUnavailable."""
    [created_ms] = await ask(link, [("ZSCORE", index, thing_id)])
    return None if created_ms is None else Place(int(created_ms), thing_id)


async def older(link: Sender, indexes: Iterable[str], before: Place, count: int) -> list[Place]:
    """The `count` youngest that are older, youngest first. Raises BusUnavailable."""
    found = await asyncio.gather(*(_beyond(link, index, before, count, is_rising=False) for index in indexes))
    return sorted((place for places in found for place in places), reverse=True)[:count]


async def younger(link: Sender, indexes: Iterable[str], after: Place, count: int) -> list[Place]:
    """The `count` oldest that are younger, oldest first. Raises BusUnavailable."""
    found = await asyncio.gather(*(_beyond(link, index, after, count, is_rising=True) for index in indexes))
    return sorted(place for places in found for place in places)[:count]


async def _beyond(link: Sender, index: str, place: Place, count: int, *, is_rising: bool) -> list[Place]:
    command, end = ("ZRANGEBYSCORE", "+inf") if is_rising else ("ZREVRANGEBYSCORE", "-inf")
    found: list[Place] = []
    offset = 0
    while True:
        query = (command, index, place.created_ms, end, "WITHSCORES", "LIMIT", offset, count)
        [flat] = await ask(link, [query])
        places = [Place(int(ms), name.decode()) for name, ms in zip(flat[::2], flat[1::2], strict=True)]
        found += [each for each in places if (each > place if is_rising else each < place)]
        if len(places) < count or len(found) >= count:
            return found
        offset += count  # many were made in one millisecond
