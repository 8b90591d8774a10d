"""How a stream of May 2024 told an error: in a line that begins with `error:`, which no reader of SSE knows.

Its clients read lines. The same event has a line of data for everybody else, so that no stream ends without a word.
"""

from __future__ import annotations

from typing import Any

from api import sse
from api.problems import body_of
from api.schemas.strict import to_json


def told(error: Exception, piece: dict[str, Any]) -> bytes:
    """One event with the error in both lines: bare in its own, and in that of data beside what each `piece` of the
    stream has, which clients of then add up without a look."""
    body = body_of(error)
    return b"error: " + to_json(body["error"]) + b"\n" + sse.data({**piece, **body})
