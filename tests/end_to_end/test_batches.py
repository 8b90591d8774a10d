"""Batches over HTTP on a real worker, with the tasks in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from pydantic import SecretStr

from api.fleet import Fleet
from api.images import Images
from api.outgoing import Outgoing
from api.tasks.batches.sweep import find_batches, work_on_batches
from shared.bus import open_bus
from shared.settings import TasksSettings
from shared.store import open_store
from tests.stack import PATIENCE_S, Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(shared_stack: Stack) -> AsyncIterator[Stack]:
    variables = shared_stack.environment
    settings = TasksSettings(
        redis_url=SecretStr(variables["SLOTSTREAM_REDIS_URL"]),
        namespace=variables["SLOTSTREAM_NAMESPACE"],
        store_url=SecretStr(variables["SLOTSTREAM_STORE_URL"]),
        batch_in_flight=4,
    )
    async with (
        open_store(variables["SLOTSTREAM_STORE_URL"]) as store,
        open_bus(settings, name="tasks") as bus,
        Outgoing.open() as outgoing,
    ):
        parts = [
            asyncio.create_task(work_on_batches(settings, bus, store, Images(Fleet(bus), outgoing, settings))),
            asyncio.create_task(find_batches(settings, bus)),
        ]
        yield shared_stack
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


async def run(stack: Stack, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    content = "".join(json.dumps({"method": "POST", **line}) + "\n" for line in lines).encode()
    sent = await stack.http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)})
    fields = {"input_file_id": sent.json()["id"], "endpoint": "*", "completion_window": "1h"}
    batch: dict[str, Any] = (await stack.http.post("/v1/batches", json=fields)).json()
    async with asyncio.timeout(PATIENCE_S):
        while batch["status"] in ("validating", "in_progress", "finalizing"):
            await asyncio.sleep(0.05)
            batch = (await stack.http.get(f"/v1/batches/{batch['id']}")).json()
    return batch


async def records(stack: Stack, file_id: str) -> dict[str, Any]:
    """By custom id."""
    content = (await stack.http.get(f"/v1/files/{file_id}/content")).text
    return {record["custom_id"]: record for record in map(json.loads, content.splitlines())}


async def test_c17_good_and_bad_lines_of_a_batch(stack: Stack) -> None:
    good = {"prompt": "Once upon a time", "n_predict": 4, "seed": 1, "ignore_eos": True}
    batch = await run(
        stack,
        [
            {"custom_id": "native", "url": "/completion", "body": good},
            {"custom_id": "openai", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 3}},
            {"custom_id": "vector", "url": "/v1/embeddings", "body": {"input": "Once"}},
            {"custom_id": "bad type", "url": "/completion", "body": good | {"n_predict": "x"}},
            {"custom_id": "too long", "url": "/completion", "body": good | {"prompt": "Once upon a time " * 400}},
            {"custom_id": "no grammar", "url": "/completion", "body": good | {"grammar": "root ::= ("}},
        ],
    )
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 6, "completed": 3, "failed": 3}
    outputs = await records(stack, batch["output_file_id"])
    errors = await records(stack, batch["error_file_id"])
    assert outputs.keys() == {"native", "openai", "vector"}
    alone = (await stack.http.post("/completion", json=good)).json()
    assert outputs["native"]["response"]["body"]["content"] == alone["content"]
    told = {name: record["response"]["body"]["error"]["type"] for name, record in errors.items()}
    assert {record["response"]["status_code"] for record in errors.values()} == {400}
    assert told == {
        "bad type": "invalid_request_error",
        "too long": "exceed_context_size_error",
        "no grammar": "invalid_request_error",
    }


async def test_beginnings_that_lines_share_are_computed_once_however_they_are_mixed(stack: Stack) -> None:
    """They are far more than fit into the cache together."""
    words = ("sea", "hill", "road", "star", "leaf", "rain", "wind", "bird", "tree", "sand", "lake", "fire")
    lines = [
        {
            "custom_id": f"{word} {n}",
            "url": "/completion",
            "body": {"prompt": f"{word} " * 180 + str(n), "n_predict": 1},
        }
        for n in range(6)
        for word in words
    ]
    usage = (await run(stack, lines))["usage"]
    share = usage["input_tokens_details"]["cached_tokens"] / usage["input_tokens"]
    assert share > 0.6
