"""The webhook that a job or batch brings itself: read, and checked as that of an endpoint is."""

from __future__ import annotations

from collections.abc import Sequence

from api.context import Context
from api.schemas.strict import bad_field
from api.schemas.webhook import WebhookFields
from api.webhooks.events import RESPONSES
from shared.webhooks import JOB_EVENTS, RESPONSE_EVENTS, Secret, Webhook


def events_of_job(endpoint: str) -> tuple[str, ...]:
    """What a job of the path `endpoint` can end with."""
    return RESPONSE_EVENTS if endpoint in RESPONSES else JOB_EVENTS


def webhook_of(context: Context, fields: WebhookFields | None, events: Sequence[str]) -> Webhook | None:
    """What is asked of something that can end with `events`. Raises InvalidRequest, which names a field in `webhook`:
    an event that never comes, or no secret, neither its own nor the server's."""
    if fields is None:
        return None
    if other := [name for name in fields.events if name not in events]:
        raise bad_field("webhook.events", f"this cannot end with {other[0]}, but with {', '.join(events)}")
    secret = fields.secret or context.settings.webhook_secret
    if secret is None:
        raise bad_field("webhook.secret", "is needed: this server has none of its own (--webhook-secret)")
    return Webhook(url=fields.url, events=tuple(fields.events), secret=Secret(value=secret))


async def check_address(context: Context, webhook: Webhook | None) -> None:
    """To be asked when it is certain that something new is made: what was made before stays so, whatever the name of
    its webhook's host leads to by now. Raises InvalidRequest for an address that may not be called."""
    if webhook is not None:
        await context.outgoing.examine(webhook.url, "webhook.url")
