"""Server-Sent Events as bytes. Knows no job and no client family."""

from __future__ import annotations

from typing import Any

from api.framing import Framing
from api.schemas.strict import to_json

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: no client parses it as an event, and no proxy takes the connection for dead."""

DONE = b"data: [DONE]\n\n"

HEADERS: dict[str, str] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

FRAMING = Framing(HEADERS, lambda: KEEP_ALIVE)


def data(value: Any) -> bytes:
    """An event without a name. JSON escapes line breaks, so one `data:` line always suffices."""
    return b"data: " + to_json(value) + b"\n\n"


def event(number: int, name: str, value: Any) -> bytes:
    """A named event with an id to resume from."""
    return b"id: %d\nevent: %s\ndata: " % (number, name.encode()) + to_json(value) + b"\n\n"


def notice(name: str, value: Any) -> bytes:
    """A named event without an id: it moves no reader's cursor."""
    return b"event: %s\ndata: " % name.encode() + to_json(value) + b"\n\n"
