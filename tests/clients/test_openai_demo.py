"""The `openai` client and the demo model, whose words mean something: a question, a call, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.stack import Stack
from worker.demo import demo_model_path


class Weather(BaseModel):
    """Looks up the weather of a city."""

    city: Literal["Berlin", "Paris", "Rome"]


@pytest.mark.slow
async def test_the_demo_model_answers_calls_and_hears_what_came_of_it(valkey_url: str, tmp_path: Path) -> None:
    stack = Stack(valkey_url, tmp_path)
    try:
        await stack.start_api()
        await stack.start_worker(demo_model_path(), ctx_size=4096, parallel=2, threads=2)
        async with AsyncOpenAI(base_url=f"{stack.http.base_url}/v1", api_key="none", max_retries=0) as client:
            await _talk(client)
        await stack.until(stack.is_idle)
    finally:
        await stack.close()


async def _talk(client: AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "any", "temperature": 0, "max_tokens": 60}
    question: Any = {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
    stream = await client.chat.completions.create(**asked, messages=[question], stream=True)
    said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert "Paris" in said

    wish: Any = {"role": "user", "content": "Look up the weather in Rome."}
    tools = [openai.pydantic_function_tool(Weather)]
    called = await client.chat.completions.parse(**asked, messages=[wish], tools=tools, tool_choice="required")
    message = called.choices[0].message
    assert message.tool_calls and called.choices[0].finish_reason == "tool_calls"
    assert isinstance(message.tool_calls[0].function.parsed_arguments, Weather)

    results: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": "It is sunny in Rome."} for call in message.tool_calls
    ]
    said_so: Any = message
    again = await client.chat.completions.create(**asked, messages=[wish, said_so, *results])
    assert "sunny" in (again.choices[0].message.content or "")
