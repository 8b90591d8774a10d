"""Jobs on real processes and a real model: what they answer, and the command that follows them through a crash."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.stack import Stack

LONG = 400
"""Tokens of an answer that is still being made when a test looks."""

TEXT = {"prompt": "Hi there", "seed": 5, "temperature": 0.7, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, "seed": 5, "ignore_eos": True}
BODIES: dict[str, dict[str, Any]] = {
    "/completion": TEXT | {"n_predict": 12, "return_tokens": True},
    "/completions": TEXT | {"n_predict": 12, "response_fields": ["content", "tokens_predicted"]},
    "/v1/completions": TEXT | {"max_tokens": 12},
    "/v1/chat/completions": CHAT,
    "/chat/completions": CHAT,
    "/v1/embeddings": {"input": ["a cat", "a dog"]},
}
OF_THE_RUN = {"id", "created", "timings", "id_slot", "prompt_tokens_details"}
"""What two runs of one request do not share: who and when it was, how fast, and what was cached."""


def without_the_run(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_the_run(each) for name, each in value.items() if name not in OF_THE_RUN}
    return [without_the_run(each) for each in value] if isinstance(value, list) else value


async def test_a_result_is_what_every_endpoint_answers_with_the_same_seed(stack: Stack, model: Path) -> None:
    await stack.start_worker(model)
    for endpoint, body in BODIES.items():
        made = await stack.http.post("/v1/jobs", json={"endpoint": endpoint, "body": body})
        await stack.http.get(f"/v1/jobs/{made.json()['id']}/events")
        job = (await stack.http.get(f"/v1/jobs/{made.json()['id']}")).json()
        answered = (await stack.http.post(endpoint, json=body)).json()
        assert job["status"] == "succeeded", job["error"]
        assert without_the_run(job["result"]) == without_the_run(answered), endpoint
        assert job["result"].keys() == answered.keys()


async def jobs_command(stack: Stack, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "api.cli", "jobs", *arguments),
        env=os.environ | {"SLOTSTREAM_URL": str(stack.http.base_url)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.slow
async def test_the_command_follows_a_job_through_the_death_of_the_api(bare_stack: Stack, model: Path) -> None:
    stack, port = bare_stack, free_port()
    first = await stack.start_api(port)
    await stack.start_worker(model, ctx_size=16384, parallel=2)
    made = await stack.http.post("/v1/jobs", json={"endpoint": "/completion", "body": TEXT | {"n_predict": LONG}})
    command = await jobs_command(stack, "events", made.json()["id"], "--json")
    assert command.stdout
    begun = await command.stdout.readline()
    first.signal(signal.SIGKILL)
    await first.wait()
    await stack.start_api(port)
    rest, remarks = await command.communicate()
    assert command.returncode == 0, remarks
    assert b"waiting: " in remarks
    *tokens, end = [json.loads(line) for line in (begun + rest).splitlines()]
    assert [event["id"] for event in (*tokens, end)] == list(range(1, len(tokens) + 2))
    assert "".join(token["data"]["text"] for token in tokens) == end["data"]["result"]["content"]
