"""Requests and results that are too large for Redis, through real processes that share a store, and with one that does
not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from shared.bus.annex import LARGE
from tests.stack import Stack, ask, follow, make_job

STOPS = [f"{number:1024}" for number in range(256)]
"""Of a request with a short prompt all the same."""
N_INPUTS = 700


@pytest.fixture
async def stack(redis_url: str, model: Path, tmp_path: Path) -> AsyncIterator[Stack]:
    stack = Stack(redis_url, tmp_path)
    try:
        await stack.start_api(store_url=tmp_path / "store")
        await stack.start_worker(model, ctx_size=1024, parallel=4, store_url=tmp_path / "store")
        yield stack
    finally:
        await stack.close()


def memory(stack: Stack, job_id: str) -> int:
    """Bytes that the server has of a job."""
    with redis.Redis.from_url(stack.environment["SLOTSTREAM_REDIS_URL"]) as client:
        [key] = client.scan_iter(match=f"{stack.environment['SLOTSTREAM_NAMESPACE']}:*:job:{job_id}")
        return int(client.memory_usage(key, samples=0))


async def test_what_is_large_goes_through_the_store_as_long_as_all_workers_share_it(
    stack: Stack, tmp_path: Path, model: Path
) -> None:
    asked = ask(stop=STOPS)
    expected = (await stack.http.post("/completion", json=asked)).json()["content"]
    job_id = await make_job(stack, asked)
    _, job = await follow(stack, job_id)
    assert job["result"]["content"] == expected
    assert memory(stack, job_id) < 10_000

    inputs = [f"input {number}" for number in range(N_INPUTS)]
    vectors = await stack.http.post("/v1/jobs", json={"endpoint": "/v1/embeddings", "body": {"input": inputs}})
    _, job = await follow(stack, vectors.json()["id"])
    assert [each["index"] for each in job["result"]["data"]] == list(range(N_INPUTS))
    assert memory(stack, job["id"]) < 50_000
    at_once = (await stack.http.post("/v1/embeddings", json={"input": inputs})).json()
    assert at_once["data"][7]["embedding"] == job["result"]["data"][7]["embedding"]
    page = await stack.http.get("/v1/jobs")
    assert len(page.content) < 10_000
    assert [each.get("result_omitted", False) for each in page.json()["data"]] == [True, True]

    objects = {path.name.partition("-")[0].partition(".")[2] for path in (tmp_path / "store").rglob("job_*")}
    assert objects == {"request", "body", "result"}

    await stack.start_worker(model, ctx_size=1024, parallel=4)  # which has no store
    last = [await make_job(stack, asked) for _ in range(4)]
    assert [(await follow(stack, job_id))[1]["status"] for job_id in last] == 4 * ["succeeded"]
    assert all(memory(stack, job_id) > LARGE for job_id in last)
