"""Reads event streams back into events, as a client would."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple


class Event(NamedTuple):
    id: str | None
    name: str | None
    data: Any


def events(lines: Iterable[str]) -> list[Event]:
    """Comments are dropped; `[DONE]` stays text."""
    found, fields = [], {}
    for line in lines:
        if not line:
            if "data" in fields:
                data = fields["data"]
                value = data if data == "[DONE]" else json.loads(data)
                found.append(Event(fields.get("id"), fields.get("event"), value))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
    assert not fields, f"the stream ends inside an event: {fields}"
    return found


def data(lines: Iterable[str]) -> list[Any]:
    return [event.data for event in events(lines)]
