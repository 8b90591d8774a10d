"""Server-Sent Events as a client reads them. Knows no connection."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    name: str
    number: int
    """0 when it has none."""
    data: bytes


class EventBuffer:
    """Server-Sent Events out of pieces of any size. Comments and half an event at the end say nothing."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def push(self, piece: bytes) -> list[Event]:
        start = max(0, len(self._rest) - 1)  # an end may lie across two pieces
        self._rest += piece
        if self._rest.find(b"\n\n", start) < 0:
            return []
        *blocks, rest = bytes(self._rest).split(b"\n\n")
        self._rest = bytearray(rest)
        return [event for block in blocks if (event := _event(block))]


def _event(block: bytes) -> Event | None:
    name, number, data = "message", 0, b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            name = value.decode(errors="replace")
        elif field == b"id" and value.isdigit():
            number = int(value)
        elif field == b"data":
            data = data + b"\n" + value if data else value
    return Event(name, number, data) if data else None
