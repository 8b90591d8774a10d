"""From the `openai` SDK's request to the message at its receiver, through all roles as processes of their own."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
import standardwebhooks
from openai import AsyncOpenAI

from api.webhooks.signing import new_secret
from shared.webhooks import EVENT_TYPES
from tests.receiver import Call, Receiver, receiving
from tests.stack import Role, Stack, ask

pytestmark = pytest.mark.asyncio(loop_scope="session")

LINES = [
    {
        "custom_id": str(number),
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": "Hi", "max_tokens": 4, "seed": 1},
    }
    for number in range(3)
]


def end_of(call: Call) -> tuple[str, str]:
    return call.event["type"], call.event["data"]["id"]


async def heard(receiver: Receiver, path: str, ends: set[tuple[str, str]]) -> list[Call]:
    """The calls of these ends at a path, once they are all there: others' may come too."""
    while True:
        calls = [call for call in receiver.calls if call.path == path and end_of(call) in ends]
        if {end_of(call) for call in calls} == ends:
            return calls
        await receiver.until_called(len(receiver.calls) + 1)


async def batch_of(client: AsyncOpenAI) -> str:
    content = "\n".join(map(json.dumps, LINES)).encode()
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    made = await client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    return made.id


async def read(client: AsyncOpenAI, event: Any) -> None:
    """What a receiver does that is told of a batch or a response."""
    if event.type == "batch.completed":
        batch = await client.batches.retrieve(event.data.id)
        content = await client.files.content(batch.output_file_id or "")
        assert sorted(json.loads(line)["custom_id"] for line in content.text.splitlines()) == ["0", "1", "2"]
    elif event.type == "response.incomplete":
        assert (await client.responses.retrieve(event.data.id)).status == "incomplete"


async def test_batches_responses_and_jobs_are_told_of_in_words_that_the_sdk_understands(
    served: Stack, shared_tasks: Role
) -> None:
    client = openai.AsyncOpenAI(base_url=f"{served.http.base_url}/v1", api_key="none")
    async with client, receiving() as receiver:
        types: Any = EVENT_TYPES  # ours for jobs are not in the SDK's list
        endpoint: Any = await client.webhooks.create(name="all", url=receiver.url(), event_types=types)
        batch_id = await batch_of(client)
        secret = new_secret().get_secret_value()
        webhook = {"url": receiver.url("/own"), "secret": secret}
        response = await client.responses.create(
            model="tiny", input="Hi", background=True, max_output_tokens=4, extra_body={"webhook": webhook}
        )
        fields = {"endpoint": "/completion", "body": ask(), "webhook": webhook}
        job_id = (await served.http.post("/v1/jobs", json=fields)).json()["id"]

        ends = {("batch.completed", batch_id), ("response.incomplete", response.id), ("job.succeeded", job_id)}
        for call in await heard(receiver, "/hook", ends):
            event = client.webhooks.unwrap(call.body, call.headers, secret=endpoint.signing_secret)
            assert (event.type, event.data.id) == end_of(call)
            await read(client, event)
        for own in await heard(receiver, "/own", ends - {("batch.completed", batch_id)}):
            standardwebhooks.Webhook(secret).verify(own.body, dict(own.headers))
        await client.webhooks.delete(endpoint.id)
