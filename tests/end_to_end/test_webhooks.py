"""From the `openai` SDK's request to the message at its receiver, through all roles as processes of their own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
import standardwebhooks

from api.webhooks.signing import new_secret
from shared.webhooks import EVENT_TYPES
from tests.receiver import Call, Receiver, receiving
from tests.stack import Stack, ask

PROMPT = {"prompt": "Hi", "max_tokens": 4, "seed": 1}


@pytest_asyncio.fixture
async def stack(valkey_url: str, tmp_path: Path, model: Path) -> AsyncIterator[Stack]:
    stack = Stack(valkey_url, tmp_path)
    stack.environment |= {"SLOTSTREAM_ALLOW_HOSTS": "127.0.0.1", "SLOTSTREAM_STORE_URL": str(tmp_path / "store")}
    try:
        stack.start("api.tasks")
        await stack.start_api()
        await stack.start_worker(model, ctx_size=1024, parallel=4)
        yield stack
    finally:
        await stack.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


def told(calls: list[Call]) -> set[tuple[str, str]]:
    return {(call.event["type"], call.event["data"]["id"]) for call in calls}


async def test_files_batches_responses_and_jobs_are_told_of_in_words_that_the_sdk_understands(
    stack: Stack, receiver: Receiver
) -> None:
    client = openai.AsyncOpenAI(base_url=f"{stack.http.base_url}/v1", api_key="none")
    endpoint: Any = await client.webhooks.create(
        name="all",
        url=receiver.url(),
        event_types=[*EVENT_TYPES],  # ours for jobs are not in the SDK's list
    )
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": PROMPT} for number in range(3)
    ]
    file = await client.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    batch = await client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    response = await client.responses.create(model="tiny", input="Hi", background=True, max_output_tokens=4)
    own = new_secret()
    webhook = {"url": receiver.url("/own"), "secret": own.get_secret_value()}
    job = await stack.http.post("/v1/jobs", json={"endpoint": "/completion", "body": ask(), "webhook": webhook})
    assert job.status_code == 202, job.text

    calls = await receiver.until_called(4)
    of_all, of_one = ([call for call in calls if call.path == path] for path in ("/hook", "/own"))
    assert told(of_all) == {
        ("batch.completed", batch.id),
        ("response.incomplete", response.id),
        ("job.succeeded", job.json()["id"]),
    }
    assert told(of_one) == {("job.succeeded", job.json()["id"])}
    for call in of_all:
        event = client.webhooks.unwrap(call.body, call.headers, secret=endpoint.signing_secret)
        assert (event.id, event.type) == (call.event["id"], call.event["type"])
        if event.type == "batch.completed":
            ended = await client.batches.retrieve(event.data.id)
            assert (ended.status, ended.output_file_id is not None) == ("completed", True)
            content = await client.files.content(ended.output_file_id or "")
            assert sorted(json.loads(line)["custom_id"] for line in content.text.splitlines()) == ["0", "1", "2"]
        elif event.type == "response.incomplete":
            assert (await client.responses.retrieve(event.data.id)).status == "incomplete"
    standardwebhooks.Webhook(own.get_secret_value()).verify(of_one[0].body, dict(of_one[0].headers))
    await client.close()
