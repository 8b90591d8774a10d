"""Webhook endpoints in JSON: what makes and changes one, how it looks, and how its deliveries do.

An endpoint is OpenAI's, with what became of it besides; its deliveries are ours. A secret is told when it is made, and
never again.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from api.schemas.jobs import WholeNumber
from api.schemas.strict import ClientFields, OwnFields
from api.schemas.webhook import EventTypes, SigningSecret, Url
from shared.bus import DeliveryPage, EndpointPage, Replayed
from shared.webhooks import EVENT_TYPES, SECRET_PREFIX, Attempt, Delivery, DeliveryStatus, Endpoint

MAX_NAME = 256
MAX_PAGE = 100
LATEST = 253402300799
"""The last second of the year 9999."""
WHOLE_SECOND_S = 0.999
"""Times are shown in whole seconds: what was made in the one that is named last counts too."""

Name = Annotated[str, StringConstraints(max_length=MAX_NAME)]
Time = Annotated[WholeNumber, Field(ge=0, le=LATEST)]


class EndpointFields(ClientFields):
    """The body of `POST /v1/webhook_endpoints`."""

    name: Name = ""
    url: Url
    event_types: EventTypes
    signing_secret: SigningSecret | None = None
    """`whsec_` and the base64 of 24 to 64 bytes; without one, it is made here."""


class ChangeFields(ClientFields):
    """The body of `POST /v1/webhook_endpoints/{id}`: what is absent stays."""

    name: Name | None = None
    url: Url | None = None
    event_types: EventTypes | None = None
    status: Literal["enabled"] | None = None
    """`enabled`: of one that was disabled."""


class RotateFields(ClientFields):
    keep_old_secret_active_for_24_hours: bool = False


class SampleFields(ClientFields):
    event_type: Annotated[str, Field(json_schema_extra={"enum": list(EVENT_TYPES)})]


class EndpointListFields(ClientFields):
    """The query of `GET /v1/webhook_endpoints`."""

    limit: WholeNumber = Field(20, ge=1, le=MAX_PAGE)
    after: str | None = None


class DeliveryListFields(OwnFields):
    """The query of `GET …/deliveries`. Times are Unix seconds of when deliveries were made, both included."""

    status: DeliveryStatus | None = Field(None, strict=False)
    since: Time | None = None
    until: Time | None = None
    limit: WholeNumber = Field(20, ge=1, le=MAX_PAGE)
    after: str | None = None


class ReplayFields(OwnFields):
    """The body of `POST …/replay`. Times as in lists."""

    since: Annotated[int, Field(ge=0, le=LATEST)]
    until: Annotated[int, Field(ge=0, le=LATEST)] | None = None
    statuses: Annotated[list[Annotated[DeliveryStatus, Field(strict=False)]], Field(min_length=1, max_length=3)] = [
        DeliveryStatus.FAILED
    ]
    after: str | None = None
    """The `next` of the answer before, which had some thousands and left some."""


def end_of(second: int | None) -> float | None:
    """The last moment, in Unix seconds, that counts as within it."""
    return None if second is None else second + WHOLE_SECOND_S


def endpoint_json(endpoint: Endpoint, *, with_secret: bool = False) -> dict[str, Any]:
    secret = endpoint.secrets[0].value.get_secret_value()
    return {
        "id": endpoint.id,
        "object": "webhook_endpoint",
        "name": endpoint.name,
        "url": endpoint.url,
        "event_types": list(endpoint.event_types),
        "created_at": int(endpoint.created_at),
        "updated_at": int(endpoint.updated_at),
        "signing_secret_hint": f"{SECRET_PREFIX}...{secret[-4:]}",
        "status": "enabled" if endpoint.disabled_at is None else "disabled",
        "disabled_at": _second(endpoint.disabled_at),
        "disabled_reason": endpoint.disabled_reason,
        "failing_since": _second(endpoint.failing_since),
        **({"signing_secret": secret} if with_secret else {}),
    }


def endpoints_json(page: EndpointPage) -> dict[str, Any]:
    return _list_json([endpoint_json(endpoint) for endpoint in page.records], has_more=page.has_more)


def tested_json(endpoint: Endpoint, event_type: str, attempt: Attempt) -> dict[str, Any]:
    return {
        "object": "webhook_endpoint.test",
        "webhook_endpoint_id": endpoint.id,
        "event_type": event_type,
        "status_code": attempt.status_code,
        "success": attempt.status_code is not None,
        "error": attempt.error,
    }


def delivery_json(delivery: Delivery) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "object": "webhook_delivery",
        "webhook_endpoint_id": delivery.endpoint_id,
        "event_id": delivery.event_id,
        "event_type": delivery.event_type,
        "event": json.loads(delivery.body),
        "status": delivery.status.value,
        "created_at": int(delivery.created_at),
        "next_attempt_at": _second(delivery.next_at),
        "ended_at": _second(delivery.ended_at),
        "reason": delivery.reason,
        "n_attempts": delivery.n_attempts,
        "attempts": [_attempt_json(attempt) for attempt in delivery.attempts],
    }


def deliveries_json(page: DeliveryPage) -> dict[str, Any]:
    return _list_json([delivery_json(delivery) for delivery in page.records], has_more=page.has_more)


def replayed_json(endpoint_id: str, replayed: Replayed) -> dict[str, Any]:
    return {
        "object": "webhook_endpoint.replay",
        "webhook_endpoint_id": endpoint_id,
        "count": replayed.n_replayed,
        "next": replayed.next,
    }


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempted_at": int(attempt.at),
        "duration_ms": attempt.duration_ms,
        "status_code": attempt.status_code,
        "error": attempt.error,
        "response": attempt.response,
    }


def _list_json(items: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


def _second(time: float | None) -> int | None:
    return None if time is None else int(time)
