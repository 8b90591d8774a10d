"""What follows from a try: when the delivery is tried again, when its endpoint, and when either is given up. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from shared.webhooks import Attempt, Delivery, DeliveryStatus, Endpoint

HOUR_S = 3600.0

STEPS_S = (5.0, 300.0, 1800.0, *(hours * HOUR_S for hours in (2, 5, 10, 14, 20, 24)))
"""Between one attempt and the next: ten in all, over 75.6 hours. Standard Webhooks' own."""

JITTER = 0.1
"""Each step is longer or shorter by as much of itself at most, so that what failed together does not come together."""

MAX_RETRY_AFTER_S = 24 * HOUR_S

GONE = 410
THROTTLED = (429, 502, 503, 504)
"""What says that less would be more."""

LEAST_REST_S, MOST_REST_S = 5.0, 300.0

PATIENCE_S = 120 * HOUR_S
"""For which an endpoint may fail before it is disabled."""
LAST_CHANCE_S = 12 * HOUR_S
"""Age of a delivery whose failure may disable it: after quiet days an endpoint has so long to be mended."""

_SECONDS = re.compile(r"[0-9]+", re.ASCII)


class Consequence(NamedTuple):
    status: DeliveryStatus
    after_s: float | None = None
    """From now until the next attempt, of a delivery that is pending."""
    rest_s: float = 0.0
    """From now on, in which nothing at all is sent to the endpoint."""
    why_disabled: str | None = None
    """A sentence for the endpoint's tenant, when it is to be disabled."""


def consequence(
    attempt: Attempt, delivery: Delivery, endpoint: Endpoint, *, retry_after: str | None, luck: float
) -> Consequence:
    """Of an attempt at a delivery; both `delivery` and `endpoint` as they were before it. `luck` is from -1 to 1.

    `Retry-After` counts when it is later than the schedule, and up to a day: an answer that always says `1` would else
    use up all attempts in as many seconds.
    """
    code = attempt.status_code
    if code is not None and 200 <= code < 300:
        return Consequence(DeliveryStatus.DELIVERED)
    now = attempt.at + attempt.duration_ms / 1000
    asked_s = seconds_of(retry_after, now)
    if code == GONE:
        return Consequence(DeliveryStatus.FAILED, why_disabled="It answered 410 Gone.")
    failing_s = now - endpoint.failing_since if endpoint.failing_since is not None else 0.0
    if failing_s >= PATIENCE_S and now - delivery.created_at >= LAST_CHANCE_S:
        return Consequence(DeliveryStatus.FAILED, why_disabled=_why_given_up(endpoint.failing_since or now, attempt))
    rest_s = _rest_s(attempt, failing_s, asked_s) * (1 + JITTER * luck)
    if delivery.n_attempts >= len(STEPS_S):
        return Consequence(DeliveryStatus.FAILED, rest_s=rest_s)
    step_s = STEPS_S[delivery.n_attempts] * (1 + JITTER * luck)
    return Consequence(DeliveryStatus.PENDING, after_s=max(step_s, asked_s), rest_s=rest_s)


def seconds_of(retry_after: str | None, now: float) -> float:
    """What the header asks for, from `now` on, at most a day; 0 when it says nothing that can be read."""
    text = (retry_after or "").strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        moment = parsedate_to_datetime(text)
        at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
    return min(max(at - now, 0.0), MAX_RETRY_AFTER_S)


def _rest_s(attempt: Attempt, failing_s: float, asked_s: float) -> float:
    """How long a receiver is left alone that is too busy, or is not there: a quarter of the time for which it has been
    failing, within bounds. What has only just failed may still answer others."""
    if attempt.status_code in THROTTLED:
        return asked_s or _within_bounds(failing_s / 4)
    is_dead = attempt.status_code is None and failing_s > attempt.duration_ms / 1000
    return _within_bounds(failing_s / 4) if is_dead else 0.0


def _within_bounds(rest_s: float) -> float:
    return min(max(rest_s, LEAST_REST_S), MOST_REST_S)


def _why_given_up(since: float, attempt: Attempt) -> str:
    moment = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M UTC")
    last = attempt.error or f"The receiver answered with status {attempt.status_code}."
    return f"Every attempt has failed since {moment}. The last one: {last}"
