"""A stream of lines, each a JSON object, as bytes. Knows no job and no client family.

A line without an object would be an error to who reads it: what keeps a connection open is an object, too, which only
a family can make.
"""

from __future__ import annotations

from typing import Any

from api.schemas.strict import to_json

HEADERS: dict[str, str] = {
    "Content-Type": "application/x-ndjson",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


def line(value: Any) -> bytes:
    """JSON escapes line breaks, so an object is one line."""
    return to_json(value) + b"\n"
