"""OpenAI's paths, judged by the openai SDK and by what stands on the wire."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI

from tests.api.conftest import Api
from tests.api.scripted_worker import ScriptedWorker
from tests.api.sse_lines import data


@pytest.fixture
async def sdk(api: Api) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{api.url}/v1", api_key="none", max_retries=0, default_headers={"Connection": "close"}
    ) as client:
        yield client


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def test_the_sdk_reads_a_chat(sdk: AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="any", messages=user("say a|b|c"))
    assert answer.object == "chat.completion" and answer.model == "tiny"
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "abc"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.total_tokens == 10
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_the_sdk_reads_a_streamed_chat(sdk: AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(model="any", messages=user("say a|b|c"), stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "abc"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


async def test_the_sdk_raises_the_error_of_a_stream(sdk: AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(model="any", messages=user("die a"), stream=True)
    with pytest.raises(openai.APIError, match="its workers died"):
        async for _ in stream:
            pass


async def test_the_sdk_raises_an_early_error_by_its_status(sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        await sdk.chat.completions.create(model="any", messages=user("long"), stream=True)


async def test_the_first_delta_is_the_role_and_the_last_the_reason(api: Api) -> None:
    *chunks, done = data(await api.stream("/v1/chat/completions", {"messages": user("say a|b")}))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"role": "assistant", "content": None}, {"content": "a"}, {"content": "b"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert [("timings" in chunk) for chunk in chunks] == [False, False, False, True]
    assert not any("usage" in chunk for chunk in chunks)
    assert done == "[DONE]"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
async def test_usage_comes_in_a_chunk_of_its_own_when_asked_for(api: Api, path: str) -> None:
    request = {"messages": user("say a"), "stream_options": {"include_usage": True}}
    *chunks, last, done = data(await api.stream(path, request))
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 8
    assert last["timings"]["predicted_n"] == 1
    assert not any("usage" in chunk or "timings" in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert done == "[DONE]"


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_usage_does_not_come_unasked(api: Api, options: Any) -> None:
    request = {"messages": user("say a"), "stream_options": options}
    assert "usage" not in "".join(await api.stream("/v1/chat/completions", request))


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
async def test_the_limit_has_three_names(api: Api, name: str) -> None:
    body = {"messages": user("say a|b|c"), name: 2}
    choice = (await api.client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("ab", "length")


async def test_an_error_names_the_field_in_param(api: Api) -> None:
    response = await api.client.post("/v1/chat/completions", json={"messages": "hi"})
    assert response.status_code == 400
    assert response.json()["error"] == {
        "code": 400,
        "message": "Field 'messages': must be a list",
        "type": "invalid_request_error",
        "param": "messages",
    }


async def test_a_legacy_completion_is_openais(sdk: AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model="any", prompt=["say a|b", "say c"], max_tokens=2)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "ab"), (1, "c")]
    assert [choice.finish_reason for choice in answer.choices] == ["length", "stop"]
    assert answer.usage is not None and answer.usage.total_tokens == 17


async def test_a_legacy_stream_ends_once(api: Api) -> None:
    request = {"prompt": ["say a|b", "say c"], "stream_options": {"include_usage": True}}
    *chunks, usage, done = data(await api.stream("/v1/completions", request))
    choices = [chunk["choices"][0] for chunk in chunks]
    said = ["".join(choice["text"] for choice in choices if choice["index"] == i) for i in (0, 1)]
    assert said == ["ab", "c"]
    assert sum(choice["finish_reason"] is not None for choice in choices) == 2
    assert usage["usage"]["completion_tokens"] == 3
    assert done == "[DONE]"


async def test_the_sdk_reads_choices_and_counts_their_prompt_once(sdk: AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="any", messages=user("say a|b"), n=3)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [
        (0, "ab"),
        (1, "a'b'"),
        (2, "a''b''"),
    ]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 6)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_the_sdk_reads_streamed_choices(sdk: AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="any", messages=user("say a|b"), n=2, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 4
    for index, text in enumerate(("ab", "a'b'")):
        mine = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert [choice.delta.role for choice in mine] == ["assistant", None, None, None]
        assert "".join(choice.delta.content or "" for choice in mine) == text
        assert [choice.finish_reason for choice in mine] == [None, None, None, "stop"]


async def test_only_the_last_chunk_of_all_choices_has_timings(api: Api) -> None:
    for path, body in (("/v1/chat/completions", {"messages": user("say a")}), ("/v1/completions", {"prompt": "say a"})):
        *chunks, last, done = data(await api.stream(path, body | {"n": 2}))
        assert "timings" in last and not any("timings" in chunk for chunk in chunks)
        assert done == "[DONE]"


async def test_the_sdk_reads_the_probabilities_of_a_chat(sdk: AsyncOpenAI) -> None:
    ask: dict[str, Any] = {"model": "any", "messages": user("say a|👋"), "logprobs": True}
    answer = await sdk.chat.completions.create(**ask, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["a", "\ufffd", "\ufffd"]
    assert bytes(byte for entry in logprobs.content for byte in entry.bytes or []).decode() == "a👋"
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in logprobs.content)
    chunks = [chunk async for chunk in await sdk.chat.completions.create(**ask, top_logprobs=3, stream=True)]
    streamed = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert [entry for some in streamed if some is not None for entry in some.content or []] == logprobs.content


@pytest.mark.parametrize("more", [{}, {"top_logprobs": 0}, {"top_logprobs": None}])
async def test_a_chat_without_alternatives_still_tells_each_tokens_own(sdk: AsyncOpenAI, more: Any) -> None:
    answer = await sdk.chat.completions.create(model="any", messages=user("say a|b"), logprobs=True, **more)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [(entry.token, entry.top_logprobs) for entry in logprobs.content] == [("a", []), ("b", [])]


async def test_the_sdk_reads_the_probabilities_of_a_legacy_completion(sdk: AsyncOpenAI) -> None:
    ask: dict[str, Any] = {"model": "any", "prompt": ["say a|👋|b", "say c"]}
    answer = await sdk.completions.create(**ask, logprobs=2)
    first, second = (choice.logprobs for choice in answer.choices)
    assert first is not None and second is not None
    assert first.tokens == ["a", r"bytes:\xf0\x9f\x91", r"bytes:\x8b", "b"] and first.text_offset == [0, 1, 1, 2]
    assert first.token_logprobs is not None and all(value < 0 for value in first.token_logprobs)
    assert first.top_logprobs is not None and [len(likely) for likely in first.top_logprobs] == [2, 2, 2, 2]
    assert second.tokens == ["c"] and second.text_offset == [0]
    offsets = [
        offset
        async for chunk in await sdk.completions.create(**ask, logprobs=2, stream=True)
        for choice in chunk.choices
        if choice.index == 0 and choice.logprobs is not None
        for offset in choice.logprobs.text_offset or []
    ]
    assert offsets == first.text_offset
    own = (await sdk.completions.create(**ask, logprobs=0)).choices[1].logprobs
    assert own is not None and own.top_logprobs is not None and [*own.top_logprobs[0]] == ["c"]
    assert (await sdk.completions.create(**ask)).choices[0].logprobs is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_how_a_prompt_gets_on_is_told_when_asked_for(api: Api, worker: ScriptedWorker, path: str) -> None:
    body = {"messages": user("read a"), "prompt": "read a", "stream": True}
    told: list[int] = []
    async with api.client.stream("POST", path, json=body | {"return_progress": True}) as response:
        async for line in response.aiter_lines():
            if "prompt_progress" in line:
                [chunk] = data([line, ""])
                told.append(chunk["prompt_progress"]["processed"])
                assert chunk["choices"][0]["finish_reason"] is None
            if len(told) == 2:
                worker.go.set()
    assert told[0] < told[1]
    assert "prompt_progress" not in "".join(await api.stream(path, body))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_llamacpps_own_answer_stands_beside_openais_when_asked_for(api: Api, path: str) -> None:
    body = {"messages": user("say a|b"), "prompt": "say a|b", "n": 2, "verbose": True, "seed": 7}
    answer = (await api.client.post(path, json=body)).json()
    verbose = answer["__verbose"]
    assert (verbose["index"], verbose["content"], verbose["prompt"]) == (0, "ab", "the prompt")
    assert verbose["generation_settings"]["seed"] == 7 and verbose["model"] == answer["model"]
    *chunks, _ = data(await api.stream(path, body))
    assert [chunk["__verbose"]["index"] for chunk in chunks if "__verbose" in chunk] == [0, 1]
    assert "__verbose" not in (await api.client.post(path, json=body | {"verbose": False})).json()


async def test_an_echo_stands_before_each_choice(sdk: AsyncOpenAI) -> None:
    ask: dict[str, Any] = {"model": "any", "prompt": ["say a|b", "say c"], "echo": True, "n": 2}
    answer = await sdk.completions.create(**ask)
    texts = ["say a|bab", "say a|ba'b'", "say cc", "say cc'"]
    assert [choice.text for choice in answer.choices] == texts
    chunks = [chunk async for chunk in await sdk.completions.create(**ask, stream=True)]
    streamed = [(choice.index, choice.text) for chunk in chunks for choice in chunk.choices]
    assert ["".join(text for index, text in streamed if index == place) for place in range(4)] == texts


async def test_the_sdk_reads_embeddings(sdk: AsyncOpenAI) -> None:
    answer = await sdk.embeddings.create(model="mine", input=["a", "b c", "a"])
    assert answer.model == "mine"
    assert [item.index for item in answer.data] == [0, 1, 2]
    first, second, third = (np.array(item.embedding) for item in answer.data)
    assert np.allclose(first, third) and not np.allclose(first, second)
    assert np.allclose(np.linalg.norm(first), 1, atol=1e-3)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 5


async def test_both_encodings_hold_the_same_floats(api: Api) -> None:
    def ask(encoding: str) -> Any:
        return api.client.post("/v1/embeddings", json={"input": "hello", "encoding_format": encoding})

    floats = (await ask("float")).json()["data"][0]["embedding"]
    packed = (await ask("base64")).json()["data"][0]
    assert packed["encoding_format"] == "base64"
    assert np.frombuffer(base64.b64decode(packed["embedding"]), dtype="<f4").tolist() == floats


@pytest.mark.parametrize(
    ("given", "n_items"), [([28120, 905], 1), ([[28120], [905, 28]], 2), (["x"] * 40, 40), ("hello", 1)]
)
async def test_inputs_of_every_form_are_counted_right(api: Api, given: Any, n_items: int) -> None:
    body = (await api.client.post("/v1/embeddings", json={"input": given})).json()
    assert [item["index"] for item in body["data"]] == list(range(n_items))
    assert body["model"] == "tiny"


async def test_a_bad_embedding_is_refused_before_it_is_queued(api: Api, worker: ScriptedWorker) -> None:
    inputs: list[Any] = [None, "", [""], ["a", ""], [], 5, [-1], [[]]]
    bodies = [{}, *({"input": given} for given in inputs)]
    for body in [*bodies, {"input": "x", "encoding_format": "hex"}, {"input": "x", "dimensions": 10}]:
        response = await api.client.post("/v1/embeddings", json=body)
        assert response.status_code == 400, body
        assert response.json()["error"]["type"] == "invalid_request_error"
    assert worker.taken == []
