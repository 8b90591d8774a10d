"""What the answers of webhook endpoints look like. Times are Unix seconds."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict

from shared.webhooks import DeliveryStatus


class Endpoint(TypedDict):
    id: str
    object: Literal["webhook_endpoint"]
    name: str
    url: str
    event_types: list[str]
    created_at: int
    updated_at: int
    """Of its last change; how its deliveries fare is none."""
    signing_secret_hint: str
    status: Literal["enabled", "disabled"]
    disabled_at: int | None
    disabled_reason: str | None
    failing_since: int | None
    """The first failure after its last success."""


class EndpointWithSecret(Endpoint):
    signing_secret: str
    """Told when it is made, and never again."""


class EndpointList(TypedDict):
    object: Literal["list"]
    data: list[Endpoint]
    first_id: str | None
    last_id: str | None
    has_more: bool


class EventTypeList(TypedDict):
    object: Literal["list"]
    data: list[str]


class DeletedEndpoint(TypedDict):
    id: str
    object: Literal["webhook_endpoint.deleted"]
    deleted: Literal[True]


class Tested(TypedDict):
    object: Literal["webhook_endpoint.test"]
    webhook_endpoint_id: str
    event_type: str
    status_code: int | None
    success: bool
    """An answer came, whatever its status."""
    error: str | None
    """Why none came."""


class DeliveryAttempt(TypedDict):
    attempted_at: int
    duration_ms: int
    status_code: int | None
    error: str | None
    """Why no answer came."""
    response: str
    """How the answer began."""


class Delivery(TypedDict):
    id: str
    """The `webhook-id` of all its attempts."""
    object: Literal["webhook_delivery"]
    webhook_endpoint_id: str
    event_id: str
    event_type: str
    event: dict[str, Any]
    """What is sent."""
    status: DeliveryStatus
    created_at: int
    next_attempt_at: int | None
    ended_at: int | None
    reason: str | None
    """Why it was given up, where that is not what its last attempt says."""
    n_attempts: int
    """Since it was made, or replayed."""
    attempts: list[DeliveryAttempt]
    """The latest ones, of replays too."""


class DeliveryList(TypedDict):
    object: Literal["list"]
    data: list[Delivery]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Replayed(TypedDict):
    object: Literal["webhook_endpoint.replay"]
    webhook_endpoint_id: str
    count: int
    next: str | None
