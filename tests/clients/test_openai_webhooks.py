"""The `openai` SDK's webhooks, unmodified: its endpoints, and what it makes of what they are sent."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from openai.types.webhooks import WebhookEndpoint

from shared.settings import ApiSettings
from shared.webhooks import EVENT_TYPES
from tests.api.conftest import serve
from tests.api.routes.test_webhook_routes import Receiver, receiver
from tests.clients.test_openai_responses import client_of

__all__ = ["receiver"]


@pytest.fixture
async def client(settings: ApiSettings) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serve(settings.model_copy(update={"allow_hosts": ("127.0.0.1",)})) as api,
        client_of(api) as opened,
    ):
        yield opened


async def test_endpoints_are_made_listed_changed_and_deleted(client: openai.AsyncOpenAI, receiver: Receiver) -> None:
    webhooks = client.webhooks
    made = [
        await webhooks.create(name=str(number), url=receiver.url, event_types=["batch.completed", "response.failed"])
        for number in range(3)
    ]
    assert {endpoint.object for endpoint in made} == {"webhook_endpoint"} and made[0].signing_secret_hint
    listed = [endpoint async for endpoint in webhooks.list(limit=2)]
    assert all(type(endpoint) is WebhookEndpoint for endpoint in listed)
    assert {endpoint.id for endpoint in listed} == {endpoint.id for endpoint in made}
    changed = await webhooks.update(made[0].id, name="new", event_types=["batch.failed"])
    assert await webhooks.retrieve(made[0].id) == changed
    assert (changed.name, changed.url, changed.event_types) == ("new", receiver.url, ["batch.failed"])
    rotated = await webhooks.rotate_secret(made[0].id, keep_old_secret_active_for_24_hours=True)
    assert rotated.signing_secret != made[0].signing_secret
    gone = await webhooks.delete(made[0].id)
    assert gone.deleted and gone.object == "webhook_endpoint.deleted"
    with pytest.raises(openai.NotFoundError):
        await webhooks.retrieve(made[0].id)
    with pytest.raises(openai.BadRequestError):
        await webhooks.create(name="x", url="http://10.0.0.1/", event_types=["batch.failed"])
    assert (await webhooks.event_types.list()).data == list(EVENT_TYPES)


async def test_what_is_sent_is_accepted_with_either_secret_of_a_rotation(
    client: openai.AsyncOpenAI, receiver: Receiver
) -> None:
    made = await client.webhooks.create(name="", url=receiver.url, event_types=["batch.completed"])
    rotated = await client.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    tested = await client.webhooks.test(made.id, event_type="batch.completed")
    assert (tested.status_code, tested.success, tested.event_type) == (200, True, "batch.completed")
    [(headers, body)] = receiver.heard
    for secret in (made.signing_secret, rotated.signing_secret):
        event = client.webhooks.unwrap(body, headers, secret=secret)
        assert event.type == "batch.completed" and event.data.id.startswith("batch_")
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body + b" ", headers, secret=made.signing_secret)
