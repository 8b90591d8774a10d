"""One try to deliver: signed anew, sent, and what came of it. Knows no schedule and no Redis."""

from __future__ import annotations

import time
from typing import NamedTuple

from api.outgoing import Answered, Outgoing, Unanswered
from api.webhooks.signing import sign
from shared.errors import InvalidRequest
from shared.webhooks import Attempt, Delivery, Endpoint

MAX_SHOWN = 1000
"""Characters of an answer that are kept, for its tenant."""


class Tried(NamedTuple):
    attempt: Attempt
    retry_after: str | None = None
    """The header of the answer, as it was sent."""


async def attempt(outgoing: Outgoing, endpoint: Endpoint, delivery: Delivery, *, timeout_s: float) -> Tried:
    """Sends the delivery to where its endpoint is now, with the same id and bytes as ever, and a time and signatures of
    this moment. OSError when this machine has no room for another call."""
    at, started = time.time(), time.monotonic()
    body = delivery.body.encode()
    try:
        headers = {"Content-Type": "application/json"} | sign(endpoint.secrets, delivery.id, at, body).headers
        outcome = await outgoing.post(endpoint.url, body, headers, timeout_s=timeout_s)
    except (InvalidRequest, ValueError) as error:  # what is stored is no URL or no secret: said where its tenant looks
        outcome = Unanswered(f"was not called: {error}")
    duration_ms = round((time.monotonic() - started) * 1000)
    match outcome:
        case Answered(status=status, retry_after=retry_after, beginning=beginning):
            return Tried(
                Attempt(at=at, duration_ms=duration_ms, status_code=status, response=_readable(beginning)), retry_after
            )
        case Unanswered(reason=reason):
            return Tried(Attempt(at=at, duration_ms=duration_ms, error=f"The receiver {reason}."))


def _readable(beginning: bytes) -> str:
    """As text that can be shown anywhere: no control characters, and never more than was sent."""
    text = beginning[: 4 * MAX_SHOWN].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else " " for letter in text)[:MAX_SHOWN].strip()
