"""Requests and results that are too large for Redis, through real processes that share a store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import redis

from tests.stack import Stack, ask, follow, make_job

pytestmark = pytest.mark.asyncio(loop_scope="session")

STOPS = [f"{number:1024}" for number in range(256)]
"""Of a request with a short prompt all the same."""

N_INPUTS = 700


async def test_what_is_large_goes_through_the_store_and_looks_as_ever(served: Stack) -> None:
    asked = ask(stop=STOPS)
    expected = (await served.http.post("/completion", json=asked)).json()["content"]
    job_id = await make_job(served, asked)
    _, job = await follow(served, job_id)
    assert job["result"]["content"] == expected
    assert in_redis(served, job_id) < 10_000
    assert await stored(served, job_id) == {"request", "body"}
    assert [job["id"] for job in (await served.http.get("/v1/jobs?limit=1")).json()["data"]] == [job_id]


async def test_large_results_are_left_out_of_lists(served: Stack) -> None:
    inputs = [str(number) for number in range(N_INPUTS)]
    made = await served.http.post("/v1/jobs", json={"endpoint": "/v1/embeddings", "body": {"input": inputs}})
    _, job = await follow(served, made.json()["id"])
    assert [each["index"] for each in job["result"]["data"]] == list(range(N_INPUTS))
    assert in_redis(served, job["id"]) < 100_000
    assert await stored(served, job["id"]) == {"result"}
    at_once = (await served.http.post("/v1/embeddings", json={"input": inputs[:8]})).json()
    assert at_once["data"][7]["embedding"] == pytest.approx(job["result"]["data"][7]["embedding"], abs=1e-3)
    page = await served.http.get("/v1/jobs?limit=1")
    assert page.json()["data"] == [job | {"result": None, "usage": None, "result_omitted": True}]


def in_redis(stack: Stack, job_id: str) -> int:
    """Bytes that the server has of a job."""
    with redis.Redis.from_url(stack.environment["SLOTSTREAM_REDIS_URL"]) as client:
        [key] = client.scan_iter(match=f"{stack.environment['SLOTSTREAM_NAMESPACE']}:*:job:{job_id}", count=1000)
        return int(client.memory_usage(key, samples=0))


async def stored(stack: Stack, job_id: str) -> set[str]:
    """Which texts of a job are in the store."""
    folder = Path(stack.environment["SLOTSTREAM_STORE_URL"]) / "large"
    paths = await asyncio.to_thread(lambda: list(folder.rglob(f"{job_id}.*")))
    return {path.suffix.removeprefix(".").partition("-")[0] for path in paths}
