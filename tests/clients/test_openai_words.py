"""The `openai` client again, where words matter: a scripted worker says them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, SecretStr

from shared.bus import Bus
from shared.events import CallForm, ReplyForm
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker

FORM = ReplyForm(
    reasoning=("<think>", "</think>"),
    calls=CallForm(opening='<call>{"name": "', middle='", "arguments": ', closing="}</call>"),
)
CALL = '<call>{"name": "Weather", "arguments": {"city": |"Paris"}}</call>'


class Weather(BaseModel):
    """Looks up the weather."""

    city: str


@pytest.fixture
async def scripted(api: Api) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(api) as client:
        yield client


def client_of(api: Api, key: str = "none") -> AsyncOpenAI:
    ways: dict[str, Any] = {"max_retries": 0, "default_headers": {"Connection": "close"}}
    return AsyncOpenAI(base_url=f"{api.url}/v1", api_key=key, **ways)


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": f"say {text}"}], **more}


async def test_reasoning_and_calls_are_told_apart(scripted: AsyncOpenAI, worker: ScriptedWorker) -> None:
    worker.reply = FORM
    asked = says(f"<think>|hm|</think>|{CALL}|{CALL}", tools=[openai.pydantic_function_tool(Weather)])
    answer = await scripted.chat.completions.parse(**asked)
    message = answer.choices[0].message
    assert (message.content, (message.model_extra or {})["reasoning_content"]) == (None, "hm")
    assert message.tool_calls is not None
    assert [each.function.parsed_arguments for each in message.tool_calls] == [Weather(city="Paris")] * 2
    async with scripted.chat.completions.stream(**asked) as stream:
        streamed = (await stream.get_final_completion()).choices[0].message
    assert [each.function for each in streamed.tool_calls or ()] == [each.function for each in message.tool_calls]
    assert streamed.content is None and (streamed.model_extra or {})["reasoning_content"] == "hm"


async def test_a_key_is_asked_for_where_there_are_keys(settings: ApiSettings, worker: ScriptedWorker) -> None:
    keyed = settings.model_copy(update={"api_key": (SecretStr("right"),)})
    async with serve(keyed) as api, client_of(api, "wrong") as stranger, client_of(api, "right") as friend:
        with pytest.raises(openai.AuthenticationError) as refused:
            await stranger.models.list()
        assert refused.value.type == "authentication_error"
        assert (await friend.chat.completions.create(**says("a"))).choices[0].message.content == "a"


async def test_a_full_queue_is_a_rate_limit_that_says_when_to_come_back(settings: ApiSettings, bus: Bus) -> None:
    await ScriptedWorker(bus).announce("loading")
    async with serve(settings.model_copy(update={"max_queued": 1})) as api, client_of(api) as client:
        job = {"endpoint": "/completion", "body": {"prompt": "say a"}}
        assert (await api.client.post("/v1/jobs", json=job)).status_code == 202
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(**says("b"))
    assert int(refused.value.response.headers["retry-after"]) >= 1
