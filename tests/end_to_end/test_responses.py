"""Responses of a real model, whose worker and API are killed under a stream."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseStreamEvent

from tests.stack import LONG, Stack

pytestmark = pytest.mark.slow

ASKED: dict[str, Any] = {
    "model": "tiny",
    "input": "Hi",
    "max_output_tokens": LONG,
    "extra_body": {"seed": 5, "ignore_eos": True},
}


def client_of(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.http.base_url}/v1", api_key="none", max_retries=0)


def text_of(events: list[ResponseStreamEvent]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


async def test_a_response_outlives_its_worker_and_its_api_without_a_gap_or_a_repeat(stack: Stack, model: Path) -> None:
    first_worker = await stack.start_worker(model, ctx_size=16384, parallel=2)
    async with client_of(stack) as client:
        alone = await client.responses.create(**ASKED)
        assert alone.status == "incomplete" and alone.output_text
        stream = await client.responses.create(**ASKED, background=True, stream=True)
        first: list[ResponseStreamEvent] = []
        async for event in stream:
            first.append(event)
            if len(text_of(first)) > 20:
                break
        first_worker.signal(signal.SIGKILL)
        stack.roles[0].signal(signal.SIGKILL)  # the API
        await stream.close()
    await stack.start_api()
    await stack.start_worker(model, ctx_size=16384, parallel=2)
    assert first[0].type == "response.created"
    response_id, after = first[0].response.id, first[-1].sequence_number
    async with client_of(stack) as client:
        rest = [
            event async for event in await client.responses.retrieve(response_id, stream=True, starting_after=after)
        ]
        whole = [event async for event in await client.responses.retrieve(response_id, stream=True)]
        ended = await client.responses.retrieve(response_id)
    assert first + rest == whole
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    assert text_of(whole) == ended.output_text == alone.output_text
    last = whole[-1]
    assert last.type == "response.incomplete" and last.response == ended
