"""Who is told when work is done, of what, and how that went. Knows no HTTP client and no Redis.

An event is something that happened; a delivery is that event on its way to one endpoint, with the same id and the same
bytes however often it is tried.
"""

from __future__ import annotations

import base64
import binascii
from enum import StrEnum

from pydantic import SecretStr, field_serializer

from shared.wire import Wire

RESPONSE_EVENTS = ("response.completed", "response.failed", "response.cancelled", "response.incomplete")
BATCH_EVENTS = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")
JOB_EVENTS = ("job.succeeded", "job.failed", "job.cancelled", "job.expired")
EVENT_TYPES = (*BATCH_EVENTS, *RESPONSE_EVENTS, *JOB_EVENTS)
"""OpenAI's names where they fit, and ours for jobs."""

SECRET_PREFIX = "whsec_"
LEAST_SECRET, MOST_SECRET = 24, 64
"""Bytes, behind the prefix and out of base64."""


class Secret(Wire):
    """A signing secret, `whsec_` and base64 as Standard Webhooks has it. Never printed; written whole for the bus."""

    value: SecretStr
    expires_at: float | None = None
    """Of one that was replaced: until then it signs too."""

    @field_serializer("value", when_used="json")
    def _for_the_bus(self, value: SecretStr) -> str:
        return value.get_secret_value()


def key_of(secret: SecretStr) -> bytes:
    """The bytes that sign. ValueError, which does not repeat it, for what is no `whsec_` secret of 24 to 64 bytes."""
    text = secret.get_secret_value()
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(SECRET_PREFIX) or not LEAST_SECRET <= len(key) <= MOST_SECRET:
        raise ValueError(f"must be {SECRET_PREFIX} and the base64 of {LEAST_SECRET} to {MOST_SECRET} bytes")
    return key


class Webhook(Wire):
    """Of one job or batch: who is told of its end, besides the tenant's endpoints."""

    url: str
    events: tuple[str, ...] = ()
    """Empty: all that the thing can end with."""
    secret: Secret


class Endpoint(Wire):
    """Where a tenant wants to be told. Times are Unix seconds on the bus's clock."""

    id: str
    tenant: str
    name: str = ""
    url: str
    event_types: tuple[str, ...]
    secrets: tuple[Secret, ...]
    """The first is the one in force; the others sign too until they expire."""
    created_at: float = 0.0
    updated_at: float = 0.0
    is_hidden: bool = False
    """Made for the webhook of a job or batch: in no list, and it goes when its last delivery has gone."""
    disabled_at: float | None = None
    disabled_reason: str | None = None
    failing_since: float | None = None
    """The first failure after the last success."""


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    """Given up: replay sends it again."""


class Attempt(Wire):
    """One try. `status_code` is None where no answer came, and then `error` says why."""

    at: float
    duration_ms: int
    status_code: int | None = None
    error: str | None = None
    response: str = ""
    """The first bytes of the answer, as text."""


class Delivery(Wire):
    """An event on its way to an endpoint. `id` is the `webhook-id` of all its attempts."""

    id: str
    endpoint_id: str
    event_id: str
    event_type: str
    body: str
    """The exact text that is signed and sent."""
    created_at: float = 0.0
    status: DeliveryStatus = DeliveryStatus.PENDING
    n_attempts: int = 0
    """Since it was made, or replayed."""
    next_at: float | None = None
    ended_at: float | None = None
    reason: str | None = None
    """Why it was given up, where that is not what its last attempt says."""
    attempts: tuple[Attempt, ...] = ()
    """The latest ones."""
