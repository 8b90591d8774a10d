"""The `openai` client, unmodified, in its synchronous and its asynchronous form, against a stack of real processes.

Two models with random weights, whose words mean nothing: `tiny` was never taught to call, so that its calls are of the
generic form; `taught` has a template for them.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.models import N_EMBD, tiny_model
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class Weather(BaseModel):
    """Looks up the weather."""

    city: Literal["Paris", "Rome"]
    days: Literal[1, 2, 3]


class Sdk(NamedTuple):
    """The client in both its forms."""

    sync: OpenAI
    asynchronous: AsyncOpenAI

    async def answers(self, call: Callable[[Any], Any]) -> list[Any]:
        """What each of them makes of the same call."""
        return [await asyncio.to_thread(call, self.sync), await call(self.asynchronous)]

    async def streams(self, call: Callable[[Any], Any]) -> list[list[Any]]:
        """All that each of them reads from the same stream."""
        stream = await call(self.asynchronous)
        return [await asyncio.to_thread(lambda: list(call(self.sync))), [chunk async for chunk in stream]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("openai")
    template = folder / "taught.jinja"
    template.write_text(TEMPLATE)
    stack = Stack(valkey_url, folder)
    try:
        await stack.start_api()
        settings: dict[str, Any] = {"model": tiny_model(), "ctx_size": 1024, "parallel": 4, "threads": 1}
        stack.start("worker", alias="tiny", **settings)
        stack.start("worker", alias="taught", chat_template_file=template, **settings)

        async def are_ready() -> bool:
            return len((await stack.http.get("/v1/models")).json().get("data", ())) == 2

        await stack.until(are_ready)
        yield stack
        await stack.until(stack.is_idle)
        assert [role.process.poll() for role in stack.roles] == [None] * 3, "a process ended"
    finally:
        await stack.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sdk(stack: Stack) -> AsyncIterator[Sdk]:
    ways: dict[str, Any] = {"base_url": f"{stack.http.base_url}/v1", "api_key": "none", "max_retries": 0, "timeout": 40}
    with OpenAI(**ways) as sync:
        async with AsyncOpenAI(**ways) as asynchronous:
            yield Sdk(sync, asynchronous)


def chat(**more: Any) -> dict[str, Any]:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "seed": 3}
    return {**asked, "extra_body": {"ignore_eos": True}, **more}


async def test_a_chat_is_answered(sdk: Sdk) -> None:
    one, other = await sdk.answers(lambda client: client.chat.completions.create(**chat()))
    assert one.choices == other.choices, "the same seed says the same"
    [choice] = one.choices
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    assert choice.message.content and not choice.message.tool_calls
    assert (one.object, one.model, one.id[:9]) == ("chat.completion", "tiny", "chatcmpl-")
    assert one.system_fingerprint.startswith("b") and one.created > 1e9
    assert one.usage.completion_tokens == 8
    assert one.usage.total_tokens == one.usage.prompt_tokens + 8
    assert other.usage.prompt_tokens_details.cached_tokens > 0


async def test_a_streamed_chat_says_what_a_whole_one_does(sdk: Sdk) -> None:
    whole, _ = await sdk.answers(lambda client: client.chat.completions.create(**chat(n=2)))
    asked = chat(n=2, stream=True, stream_options={"include_usage": True})
    for chunks in await sdk.streams(lambda client: client.chat.completions.create(**asked)):
        *pieces, last = chunks
        assert last.choices == [] and last.usage.completion_tokens == 16
        assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
        for index in (0, 1):
            mine = [choice for chunk in pieces for choice in chunk.choices if choice.index == index]
            assert (mine[0].delta.role, mine[-1].finish_reason) == ("assistant", "length")
            assert "".join(choice.delta.content or "" for choice in mine) == whole.choices[index].message.content


async def test_the_stream_helper_gathers_a_chat(sdk: Sdk) -> None:
    asked = chat(extra_body={"grammar": 'root ::= "one two"'}, stream_options={"include_usage": True})
    async with sdk.asynchronous.chat.completions.stream(**asked) as stream:
        deltas = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "".join(deltas) == "one two"
    assert final.usage is not None and final.usage.total_tokens > final.usage.prompt_tokens


async def test_probabilities_of_a_chat_add_up_to_its_text(sdk: Sdk) -> None:
    asked = chat(logprobs=True, top_logprobs=2)
    for answer in await sdk.answers(lambda client: client.chat.completions.create(**asked)):
        entries = answer.choices[0].logprobs.content
        assert b"".join(bytes(entry.bytes) for entry in entries).decode() == answer.choices[0].message.content
        assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in entries)


async def test_an_answer_is_parsed_into_the_class_that_was_asked_for(sdk: Sdk) -> None:
    asked = chat(response_format=Weather, max_tokens=100)
    for answer in await sdk.answers(lambda client: client.chat.completions.parse(**asked)):
        assert isinstance(answer.choices[0].message.parsed, Weather)
        assert answer.choices[0].finish_reason == "stop"
    async with sdk.asynchronous.chat.completions.stream(**asked) as stream:
        assert isinstance((await stream.get_final_completion()).choices[0].message.parsed, Weather)


NAMED = {"type": "function", "function": {"name": "Weather"}}
TOOLS = [openai.pydantic_function_tool(Weather)]


@pytest.mark.parametrize(("model", "choice"), [("tiny", "required"), ("taught", NAMED)], ids=["tiny", "taught"])
async def test_a_forced_call_is_made_and_its_result_is_answered(sdk: Sdk, model: str, choice: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather?"}]
    asked = chat(model=model, messages=messages, tools=TOOLS, max_tokens=200)
    forced = {**asked, "tool_choice": choice, "parallel_tool_calls": False}
    for answer in await sdk.answers(lambda client: client.chat.completions.parse(**forced)):
        [told] = answer.choices
        assert (told.finish_reason, told.message.content) == ("tool_calls", None)
        [call] = told.message.tool_calls
        assert (call.type, call.function.name) == ("function", "Weather")
        assert isinstance(call.function.parsed_arguments, Weather)
    messages += [told.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    [message] = [
        told.message
        for told in (await sdk.asynchronous.chat.completions.create(**asked | {"tool_choice": "none"})).choices
    ]
    assert message.content and not message.tool_calls


@pytest.mark.parametrize("model", ["tiny", "taught"])
async def test_a_call_is_streamed_as_it_is_made(sdk: Sdk, model: str) -> None:
    asked = chat(model=model, tools=TOOLS, tool_choice="required", max_tokens=200, parallel_tool_calls=False)
    async with sdk.asynchronous.chat.completions.stream(**asked) as stream:
        events = [event async for event in stream]
        [choice] = (await stream.get_final_completion()).choices
    deltas = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
    [done] = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert len(deltas) > 2 and "".join(deltas) == done.arguments
    assert isinstance(done.parsed_arguments, Weather)
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)


async def test_a_text_is_completed(sdk: Sdk) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "prompt": ["One", "Two"],
        "n": 2,
        "max_tokens": 5,
        "seed": 1,
        "logprobs": 1,
        "echo": False,
        "extra_body": {"ignore_eos": True},
    }
    one, other = await sdk.answers(lambda client: client.completions.create(**asked))
    texts = [choice.text for choice in one.choices]
    assert [choice.index for choice in one.choices] == [0, 1, 2, 3] and len(set(texts)) == 4
    assert texts == [choice.text for choice in other.choices]
    assert all(len(choice.logprobs.tokens) == 5 for choice in one.choices)
    assert one.object == "text_completion" and one.usage.completion_tokens == 20
    for chunks in await sdk.streams(lambda client: client.completions.create(**asked, stream=True)):
        said = [choice for chunk in chunks for choice in chunk.choices]
        assert ["".join(choice.text for choice in said if choice.index == index) for index in range(4)] == texts


async def test_a_model_without_tokens_for_a_gap_says_so(sdk: Sdk) -> None:
    with pytest.raises(openai.InternalServerError, match="Infill is not supported by this model") as refused:
        await sdk.asynchronous.completions.create(model="tiny", prompt="a", suffix="b")
    assert refused.value.status_code == 501


@pytest.mark.parametrize("encoding", [None, "float"])
async def test_inputs_are_embedded(sdk: Sdk, encoding: str | None) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": ["some words", "others"]}
    if encoding is not None:
        asked["encoding_format"] = encoding
    for answer in await sdk.answers(lambda client: client.embeddings.create(**asked)):
        assert [item.index for item in answer.data] == [0, 1]
        vectors = np.array([item.embedding for item in answer.data])
        assert vectors.shape == (2, N_EMBD) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


async def test_inputs_may_be_ids_and_vectors_base64(sdk: Sdk) -> None:
    ids = [[28120, 905], [28120]]
    packed = await sdk.asynchronous.embeddings.create(model="tiny", input=ids, encoding_format="base64")
    plain = await sdk.asynchronous.embeddings.create(model="tiny", input=ids)
    assert packed.usage.prompt_tokens == 3
    for item, other in zip(packed.data, plain.data, strict=True):
        told: Any = item.embedding  # the client unpacks only what it asked for by itself
        assert np.frombuffer(base64.b64decode(told), dtype="<f4").tolist() == other.embedding


async def test_models_are_listed_and_found(sdk: Sdk) -> None:
    assert sorted(model.id for model in sdk.sync.models.list()) == ["taught", "tiny"]
    for model in await sdk.answers(lambda client: client.models.retrieve("tiny")):
        assert (model.id, model.object) == ("tiny", "model")


async def test_a_model_that_is_not_served_is_not_found(sdk: Sdk) -> None:
    with pytest.raises(openai.NotFoundError):
        await sdk.answers(lambda client: client.models.retrieve("none"))
    with pytest.raises(openai.NotFoundError, match="'none'"):
        await sdk.asynchronous.chat.completions.create(**chat(model="none"))


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"messages": []}, "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "poem"}}, "response_format"),
    ],
    ids=str,
)
async def test_a_bad_field_is_named(sdk: Sdk, asked: dict[str, Any], param: str) -> None:
    for more in ({}, {"stream": True}):
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.asynchronous.chat.completions.create(**chat(**asked, **more))
        assert (refused.value.param, refused.value.type) == (param, "invalid_request_error")
        with pytest.raises(openai.BadRequestError):
            sdk.sync.chat.completions.create(**chat(**asked, **more))


async def test_a_prompt_too_long_is_refused_before_the_stream(sdk: Sdk) -> None:
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size") as refused:
        await sdk.asynchronous.completions.create(model="tiny", prompt="word " * 2000, stream=True)
    assert refused.value.body["n_ctx"] == 256  # type: ignore[index]


async def test_each_answer_has_an_id_of_its_request(sdk: Sdk) -> None:
    raw = await sdk.asynchronous.chat.completions.with_raw_response.create(**chat())
    assert raw.headers["x-request-id"] and raw.headers["x-job-id"].startswith("job_")
    assert raw.parse().usage is not None
    answer = sdk.sync.chat.completions.create(**chat(), extra_headers={"X-Request-Id": "mine"})
    assert answer._request_id == "mine"


async def test_an_abandoned_stream_frees_its_slot(stack: Stack, sdk: Sdk) -> None:
    endless = chat(max_tokens=230, stream=True)
    stream = await sdk.asynchronous.chat.completions.create(**endless)
    await anext(stream)
    await stream.close()
    with sdk.sync.chat.completions.create(**endless) as read:
        next(read)
    await stack.until(stack.is_idle)


async def test_who_does_not_wait_long_enough_frees_his_slot(stack: Stack, sdk: Sdk) -> None:
    impatient = sdk.asynchronous.with_options(timeout=0.05)
    with pytest.raises(openai.APITimeoutError):
        await impatient.chat.completions.create(**chat(n=8, max_tokens=200))
    await stack.until(stack.is_idle)


async def test_llamacpps_own_fields_go_beside_openais(sdk: Sdk) -> None:
    own = {"grammar": 'root ::= "ab" "c"', "verbose": True, "id_slot": 1, "top_k": 5, "cache_prompt": False}
    answer = await sdk.asynchronous.chat.completions.create(**chat(extra_body=own))
    assert answer.choices[0].message.content == "abc"
    told = answer.model_extra or {}
    assert told["__verbose"]["id_slot"] == 1 and told["__verbose"]["generation_settings"]["top_k"] == 5
    assert told["timings"]["cache_n"] == 0
    progress = {"return_progress": True, "timings_per_token": True, "ignore_eos": True}
    chunks = [
        chunk
        async for chunk in await sdk.asynchronous.chat.completions.create(**chat(extra_body=progress, stream=True))
    ]
    extras = [chunk.model_extra or {} for chunk in chunks]
    assert any("prompt_progress" in extra for extra in extras) and any("timings" in extra for extra in extras[:-1])


async def test_an_answer_goes_on_with_the_assistants_words(sdk: Sdk) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
    told = await sdk.asynchronous.chat.completions.create(**chat(messages=messages))
    asked = {"continue_final_message": True, "add_generation_prompt": False, "ignore_eos": True}
    new = await sdk.asynchronous.chat.completions.create(**chat(messages=messages, extra_body=asked))
    assert told.choices[0].message.content == f"Well,{new.choices[0].message.content}"


@pytest.mark.parametrize("model", ["tiny", "taught"])
async def test_a_prompt_can_be_seen_with_its_tools(stack: Stack, model: str) -> None:
    asked = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
    prompts = [
        (await stack.http.post("/apply-template", json={**asked, "tool_choice": choice})).json()["prompt"]
        for choice in ("auto", "none")
    ]
    assert ["Looks up the weather." in prompt for prompt in prompts] == [True, False]
