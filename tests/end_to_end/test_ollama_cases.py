"""ollama's API in front of a real worker: the tiny model of the shared stack, four slots of 256 tokens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import ollama
import pytest

from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")

N_CTX = 256
SEEDED = {"seed": 5, "num_predict": 12}


def client_of(stack: Stack) -> ollama.AsyncClient:
    return ollama.AsyncClient(host=str(stack.http.base_url), headers={"Connection": "close"})


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_a_stream_says_what_the_whole_answer_says(served: Stack) -> None:
    async with client_of(served) as client:
        whole = await client.chat("tiny", [user("Hi")], options=SEEDED)
        chunks = [chunk async for chunk in await client.chat("tiny", [user("Hi")], options=SEEDED, stream=True)]
    assert "".join(chunk.message.content or "" for chunk in chunks) == whole.message.content != ""
    assert (chunks[-1].eval_count, chunks[-1].done_reason) == (whole.eval_count, whole.done_reason)
    assert chunks[-1].prompt_eval_count == whole.prompt_eval_count


async def test_what_is_not_said_is_chosen_by_ollamas_defaults(served: Stack) -> None:
    """With a tenth of the likelihood cut off and none of ours, another text comes."""
    ours = {"prompt": "Hi", "n_predict": 12, "seed": 5}
    async with client_of(served) as client:
        said = await client.generate("tiny", "Hi", raw=True, options=SEEDED)
    same = (await served.http.post("/completion", json=ours | {"top_p": 0.9, "min_p": 0.0})).json()["content"]
    other = (await served.http.post("/completion", json=ours | {"top_k": 1})).json()["content"]
    assert said.response == same != other


async def test_a_context_is_a_bound_and_reloads_nothing(served: Stack) -> None:
    prompt = "word " * 300
    async with client_of(served) as client:
        small = await client.generate("tiny", prompt, raw=True, options={**SEEDED, "num_ctx": 64})
        large = await client.generate("tiny", prompt, raw=True, options={**SEEDED, "num_ctx": 100_000})
        assert (small.prompt_eval_count, large.prompt_eval_count) == (63, N_CTX - 1)
        assert (await client.ps()).models[0].context_length == N_CTX


async def test_what_must_not_be_cut_is_refused_in_ollamas_words(served: Stack) -> None:
    for path, body in (
        ("/api/generate", {"prompt": "word " * 300}),
        ("/api/generate", {"prompt": "word " * 300, "raw": True, "stream": False}),
        ("/api/chat", {"messages": [user("word " * 300)]}),
    ):
        answer = await served.http.post(path, json={**body, "truncate": False})
        assert (answer.status_code, answer.json()) == (400, {"error": "the input length exceeds the context length"})


async def test_a_chat_that_is_too_long_loses_its_oldest_messages(served: Stack) -> None:
    system, last = {"role": "system", "content": "Be brief."}, user("And now?")
    old = [user("word " * 130), {"role": "assistant", "content": "word " * 130}]
    async with client_of(served) as client:
        cut = await client.chat("tiny", [system, *old, last], options=SEEDED)
        short = await client.chat("tiny", [system, old[1], last], options=SEEDED)
        least = await client.chat("tiny", [system, last], options={**SEEDED, "num_ctx": 64})
        less = await client.chat("tiny", [system, *old, last], options={**SEEDED, "num_ctx": 64})
    assert (cut.message.content, cut.prompt_eval_count) == (short.message.content, short.prompt_eval_count)
    assert (less.message.content, less.prompt_eval_count) == (least.message.content, least.prompt_eval_count)


async def test_a_full_context_is_shifted_unless_that_is_not_wanted(served: Stack) -> None:
    options = {"seed": 1, "num_ctx": 32, "num_predict": 100}
    async with client_of(served) as client:
        shifted = await client.generate("tiny", "Hi", raw=True, options=options)
    ended = (
        await served.http.post(
            "/api/generate", json={"prompt": "Hi", "raw": True, "shift": False, "stream": False, "options": options}
        )
    ).json()
    assert (shifted.eval_count, shifted.done_reason) == (100, "length")
    assert ended["done_reason"] == "length"
    assert ended["prompt_eval_count"] + ended["eval_count"] <= 33


async def test_a_format_is_kept_and_nothing_is_added_to_it(served: Stack) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    async with client_of(served) as client:
        for said in (
            (await client.chat("tiny", [user("Hi")], format=schema, options={"seed": 3})).message.content,
            (await client.generate("tiny", "Hi", raw=True, format=schema, options={"seed": 4})).response,
        ):
            assert json.loads(said or "").keys() == {"ok"}


async def test_a_schema_that_nothing_satisfies_is_an_error_before_the_stream(served: Stack) -> None:
    answer = await served.http.post(
        "/api/chat", json={"messages": [user("Hi")], "format": {"type": "string", "minLength": 5, "maxLength": 2}}
    )
    assert answer.status_code == 400 and isinstance(answer.json()["error"], str)


async def test_tools_that_the_model_was_never_taught_may_be_offered(served: Stack) -> None:
    def now() -> str:
        """The time."""
        return "noon"

    async with client_of(served) as client:
        options = {"num_predict": 60, "temperature": 0}
        said = await client.chat("tiny", [user("Hi")], tools=[now], options=options)
        chunks = [
            chunk async for chunk in await client.chat("tiny", [user("Hi")], tools=[now], options=options, stream=True)
        ]
    assert said.message.content or said.message.tool_calls
    assert all(call.function.name == "now" for call in said.message.tool_calls or ())
    assert "".join(chunk.message.content or "" for chunk in chunks) == said.message.content
    assert [call for chunk in chunks for call in chunk.message.tool_calls or ()] == [*(said.message.tool_calls or ())]


async def test_vectors_point_the_same_way_with_and_without_their_length(served: Stack) -> None:
    async with client_of(served) as client:
        unit = np.array((await client.embed("tiny", ["hello", "other"])).embeddings)
        own = np.array((await client.embeddings("tiny", "hello")).embedding)
    assert np.linalg.norm(unit, axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)
    assert np.linalg.norm(own) != pytest.approx(1.0, abs=1e-3)
    assert own / np.linalg.norm(own) == pytest.approx(unit[0], abs=1e-5)


async def test_an_input_loses_its_end_unless_that_is_not_wanted(served: Stack) -> None:
    body: dict[str, Any] = {"input": ["word " * 3000, "short"]}
    cut = (await served.http.post("/api/embed", json=body)).json()
    refused = await served.http.post("/api/embed", json={**body, "truncate": False})
    beginning = (await served.http.post("/api/embed", json={"input": "word " * 2900})).json()
    assert len(cut["embeddings"]) == 2
    assert np.array(cut["embeddings"][0]) == pytest.approx(np.array(beginning["embeddings"][0]), abs=1e-5)
    assert refused.status_code == 400 and isinstance(refused.json()["error"], str)


async def test_a_model_is_shown_with_what_stands_in_its_file(served: Stack) -> None:
    async with client_of(served) as client:
        shown = await client.show("tiny")
        (listed,) = (await client.list()).models
    assert shown.modelinfo["general.architecture"] == "llama" == shown.details.family
    assert shown.modelinfo["llama.embedding_length"] > 0
    assert "completion" in shown.capabilities and shown.template
    assert shown.modified_at == listed.modified_at


async def test_a_client_that_goes_frees_its_slot(served: Stack) -> None:
    body = {"prompt": "Hi", "raw": True, "options": {"num_predict": -1, "seed": 1}}
    async with served.http.stream("POST", "/api/generate", json=body) as response:
        async for _ in response.aiter_lines():
            break
    await served.until(served.is_idle)
