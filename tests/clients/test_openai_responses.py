"""The `openai` SDK's responses, unmodified, in its synchronous and its asynchronous form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from shared.events import CallForm, ReplyForm
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker

FORM = ReplyForm(
    reasoning=("<think>", "</think>"),
    calls=CallForm(opening='<call>{"name": "', middle='", "arguments": ', closing="}</call>"),
)
ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
CALL = '<call>{"name": "add", |"arguments": {"a"|: 1}}</call>'


def client_of(api: Api) -> openai.AsyncOpenAI:
    headers = {"Connection": "close"}
    return openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0, default_headers=headers)


@pytest.fixture
async def client(api: Api) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(api) as opened:
        yield opened


async def of_client(api: Api, work: Callable[[openai.OpenAI], Any]) -> Any:
    """What the synchronous client makes, in a thread of its own."""

    def run() -> Any:
        with openai.OpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def heard(stream: Any, n_events: int | None = None) -> list[ResponseStreamEvent]:
    """The events of a stream, or its first ones, behind which it is cut."""
    events = []
    async for event in stream:
        events.append(event)
        if len(events) == n_events:
            break
    await stream.close()
    return events


def text_of(events: list[ResponseStreamEvent]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


async def done(client: openai.AsyncOpenAI, response_id: str) -> Response:
    """Polls until it has ended, as programs do."""
    async with asyncio.timeout(10):
        while True:
            response = await client.responses.retrieve(response_id)
            if response.status not in ("queued", "in_progress"):
                return response
            await asyncio.sleep(0.01)


async def test_both_clients_read_an_answer(api: Api, client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "any",
        "input": "say a|b|c",
        "instructions": "Be brief.",
        "temperature": 0,
        "max_output_tokens": 16,
        "metadata": {"who": "me"},
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
    }
    for response in (
        await client.responses.create(**asked),
        await of_client(api, lambda sync: sync.responses.create(**asked)),
    ):
        Response.model_validate(response.to_dict())
        assert (response.status, response.output_text, response.error) == ("completed", "abc", None)
        assert (response.instructions, response.metadata) == ("Be brief.", {"who": "me"})
        assert response.usage and (response.usage.output_tokens, response.usage.total_tokens) == (3, 10)
        assert response.completed_at and response.completed_at >= response.created_at
        [message] = response.output
        assert message.type == "message" and message.content[0].type == "output_text"
        assert [entry.token for entry in message.content[0].logprobs or ()] == ["a", "b", "c"]
        assert await client.responses.retrieve(response.id) == response


async def test_a_limit_leaves_it_incomplete(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(model="any", input="say a|b|c", max_output_tokens=2)
    assert (response.status, response.output_text) == ("incomplete", "ab")
    assert response.incomplete_details and response.incomplete_details.reason == "max_output_tokens"


async def test_both_clients_read_a_stream(api: Api, client: openai.AsyncOpenAI) -> None:
    events = await heard(await client.responses.create(model="any", input="say a|b|c", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert text_of(events) == "abc"
    last = events[-1]
    assert last.type == "response.completed" and last.response.output_text == "abc"

    def stream(sync: openai.OpenAI) -> list[ResponseStreamEvent]:
        return list(sync.responses.create(model="any", input="say a|b|c", stream=True))

    assert [event.type for event in await of_client(api, stream)] == [event.type for event in events]


async def test_the_streaming_helper_puts_the_answer_together(
    api: Api, client: openai.AsyncOpenAI, worker: ScriptedWorker
) -> None:
    worker.reply = FORM
    said = f"say <think>|Hm.|</think>|It |is.|{CALL}"
    async with client.responses.stream(model="any", input=said, tools=[ADD]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    snapshots = [event.snapshot for event in events if event.type == "response.output_text.delta"]
    assert snapshots[-1] == final.output_text == "It is."
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]

    def helped(sync: openai.OpenAI) -> Response:
        with sync.responses.stream(model="any", input=said, tools=[ADD]) as stream:
            return stream.get_final_response()

    assert (await of_client(api, helped)).output_text == "It is."


class Point(BaseModel):
    x: int
    y: int


async def test_a_parsed_answer_is_an_object(client: openai.AsyncOpenAI) -> None:
    parsed = await client.responses.parse(model="any", input='say {"x":| 1, "y": 2}', text_format=Point)
    assert parsed.output_parsed == Point(x=1, y=2)
    assert parsed.text and parsed.text.format and parsed.text.format.type == "json_schema"


async def test_a_tool_is_called_and_its_output_sent_back(client: openai.AsyncOpenAI, worker: ScriptedWorker) -> None:
    worker.reply = FORM
    conversation: list[Any] = [{"role": "user", "content": f"say {CALL}"}]
    for tool_choice in ("auto", "required", {"type": "function", "name": "add"}):
        choice: Any = tool_choice
        asked = await client.responses.create(model="any", input=conversation, tools=[ADD], tool_choice=choice)
    [call] = asked.output
    assert call.type == "function_call" and (call.name, call.arguments) == ("add", '{"a": 1}')
    answered = [
        *conversation,
        *asked.output,
        {"type": "function_call_output", "call_id": call.call_id, "output": "say <think>Hm.</think>|It is 2."},
    ]
    told = await client.responses.create(model="any", input=answered, tools=[ADD])
    assert told.output_text == "It is 2."
    again: list[Any] = [*answered, *told.output, {"role": "user", "content": "say ok"}]
    assert (await client.responses.create(model="any", input=again)).output_text == "ok"


async def test_a_background_response_is_polled_for(client: openai.AsyncOpenAI, worker: ScriptedWorker) -> None:
    made = await client.responses.create(model="any", input="hold a|b", background=True)
    assert (made.status, made.background) == ("queued", True)
    worker.go.set()
    assert (await done(client, made.id)).output_text == "ab"


@pytest.mark.parametrize("n_events", [1, 2, 6])
async def test_a_cut_background_stream_and_its_rest_are_the_whole(
    client: openai.AsyncOpenAI, worker: ScriptedWorker, n_events: int
) -> None:
    stream = await client.responses.create(model="any", input="hold a|b|c", background=True, stream=True)
    first = await heard(stream, n_events)
    assert first[0].type == "response.created"
    response_id = first[0].response.id
    worker.go.set()
    assert (await done(client, response_id)).output_text == "abc"
    after = first[-1].sequence_number
    rest = await heard(await client.responses.retrieve(response_id, stream=True, starting_after=after))
    assert first + rest == await heard(await client.responses.retrieve(response_id, stream=True))
    assert text_of(first + rest) == "abc"


async def test_the_helper_picks_a_stream_up(client: openai.AsyncOpenAI, worker: ScriptedWorker) -> None:
    stream = await client.responses.create(model="any", input="hold a|b|c", background=True, stream=True)
    first = await heard(stream, 6)
    assert first[0].type == "response.created"
    worker.go.set()
    async with client.responses.stream(response_id=first[0].response.id, starting_after=5) as again:
        numbers = [event.sequence_number async for event in again]
        assert (await again.get_final_response()).output_text == "abc"
    assert numbers == list(range(6, 12))


async def test_another_process_of_the_api_goes_on_with_a_stream(settings: ApiSettings, worker: ScriptedWorker) -> None:
    async with serve(settings, grace_s=0) as api, client_of(api) as client:
        stream = await client.responses.create(model="any", input="hold a|b|c", background=True, stream=True)
        first: list[ResponseStreamEvent] = []
        async for event in stream:
            first.append(event)
            if text_of(first):
                break
        api.server.should_exit = True
        with pytest.raises(openai.APIError, match="shutting down"):
            await heard(stream)
    worker.go.set()
    async with serve(settings) as api, client_of(api) as client:
        assert first[0].type == "response.created"
        response_id, after = first[0].response.id, first[-1].sequence_number
        rest = await heard(await client.responses.retrieve(response_id, stream=True, starting_after=after))
        assert first + rest == await heard(await client.responses.retrieve(response_id, stream=True))
    assert text_of(first + rest) == "abc"


async def test_cancelling_and_deleting(client: openai.AsyncOpenAI, worker: ScriptedWorker) -> None:
    made = await client.responses.create(model="any", input="hold a|b", background=True)
    await worker.has_taken(1)
    assert (await client.responses.cancel(made.id)).status == "cancelled"
    assert (await client.responses.cancel(made.id)).status == "cancelled"
    assert await client.responses.delete(made.id) is None
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    kept = await client.responses.create(model="any", input="say a")
    with pytest.raises(openai.BadRequestError):
        await client.responses.cancel(kept.id)


async def test_a_failure_is_told_in_the_response(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model="any", input="long", background=True)
    failed = await done(client, made.id)
    assert failed.status == "failed" and failed.error and failed.error.code == "invalid_prompt"
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(model="any", input="long")
    last = (await heard(await client.responses.create(model="any", input="die a", stream=True)))[-1]
    assert last.type == "response.failed" and last.response.error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_0_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"background": True, "store": False}, "background"),
    ],
)
async def test_what_is_wrong_is_a_bad_request_that_names_it(
    client: openai.AsyncOpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(**{"model": "any", "input": "say a", **fields})
    assert caught.value.param == param


async def test_tools_that_run_elsewhere_are_refused_and_not_tried_again(api: Api) -> None:
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=5) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.responses.create(model="any", input="say a", tools=[{"type": "web_search"}])
    assert (caught.value.status_code, caught.value.param) == (501, "tools[0].type")


async def test_a_stored_answer_that_nobody_waits_for_any_more_ends(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model="any", input="hold a|b", stream=True)
    first = await heard(stream, 3)
    assert first[0].type == "response.created"
    assert (await done(client, first[0].response.id)).status == "cancelled"
