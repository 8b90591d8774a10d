"""The plan of a batch: its good lines in the order in which they run, as an object of the store, and how it is read.

A line of it is JSON, `{"line": its number in the file, "request": the line as it stood there}`. Where one begins, in
bytes, is what the bus remembers of a line that is on its way. Knows no Redis.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from shared.batches import line_job_id, plan_object
from shared.store import Store

GAP = 256 * 1024
"""Bytes between two lines that are read along: cheaper than to ask the store again."""


class PlanText(NamedTuple):
    """A line of a plan as it stands there."""

    start: int
    stop: int
    text: bytes


class PlannedLine(NamedTuple):
    """What it says."""

    number: int
    """Line in the file, from 1."""
    custom_id: str
    url: str
    body: dict[str, Any]


def plan_text(number: int, request: bytes) -> bytes:
    return b'{"line":%d,"request":%b}\n' % (number, request)


def read_plan_text(text: bytes) -> PlannedLine:
    content = json.loads(text)  # looked at strictly before it came here
    request = content["request"]
    return PlannedLine(content["line"], request["custom_id"], request["url"], request["body"])


def identity_of(batch_id: str, number: int) -> str:
    """Of the record of a line: that of its job, whether or not there ever was one."""
    return line_job_id(batch_id, number).rpartition("_")[2]


async def read_on(store: Store, batch_id: str, start: int) -> AsyncGenerator[PlanText, None]:
    """The lines from `start` on, where one begins. Close it (`aclosing`) when you leave early.

    Raises UnknownFile and StoreUnavailable.
    """
    begun: list[bytes] = []
    async with aclosing(store.read(plan_object(batch_id), start)) as pieces:
        async for piece in pieces:
            *ended, rest = piece.split(b"\n")
            for text in ended:
                whole = b"".join((*begun, text))
                begun.clear()
                yield PlanText(start, start + len(whole) + 1, whole)
                start += len(whole) + 1
            if rest:
                begun.append(rest)


async def read_at(store: Store, batch_id: str, places: Sequence[int]) -> AsyncGenerator[PlanText, None]:
    """The lines that begin at these places, in the order of the plan. Close it when you leave early.

    Raises UnknownFile and StoreUnavailable.
    """
    wanted = sorted(set(places))
    while wanted:
        async with aclosing(read_on(store, batch_id, wanted[0])) as lines:
            async for line in lines:
                if line.start == wanted[0]:
                    yield line
                    del wanted[0]
                if not wanted or wanted[0] - line.stop > GAP:
                    break
            else:
                return  # no such places
