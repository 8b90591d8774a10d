"""A client of llama.cpp's server of May 2024, that reads what it read then, from a server that is told to speak so.

It is written after the script that the server's page had: it takes a stream line by line, without knowing that these
are Server-Sent Events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest

from tests.end_to_end.asking import forced
from tests.stack import Stack, ask

pytestmark = pytest.mark.asyncio(loop_scope="session")

N_CTX = 256
"""Of a slot of the shared stack."""
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@dataclass
class Reading:
    """What the client has of a stream: text that it added up without a look, settings of the last piece, errors."""

    content: str = ""
    pieces: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)

    def push(self, line: str) -> bool:
        """Whether there is more to come."""
        found = re.fullmatch(r"(\S+): (.*)", line)
        if found is None:
            return True
        name, value = found[1], found[2]
        if name == "error":
            self.errors.append(json.loads(value))
        if name != "data":
            return True
        piece = json.loads(value)
        self.pieces.append(piece)
        self.content += piece["content"]
        if piece["stop"]:
            self.settings = piece["generation_settings"]
        return not piece["stop"]


@dataclass
class OldClient:
    http: httpx.AsyncClient

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    async def stream(self, body: Mapping[str, Any], *, cancels: bool = False) -> Reading:
        """`cancels`: what is asked for is ended from elsewhere after the first piece."""
        reading = Reading()
        async with self.http.stream("POST", "/completion", json={**body, "stream": True}) as response:
            async for line in response.aiter_lines():
                if not reading.push(line):
                    break
                if cancels and len(reading.pieces) == 1:
                    await self.http.post(f"/v1/jobs/{response.headers['x-job-id']}/cancel")
        return reading


@pytest.fixture
def client(served: Stack, old_api: httpx.AsyncClient) -> OldClient:
    return OldClient(old_api)


async def test_a_stream_adds_up_to_the_answer_and_brings_its_settings(client: OldClient) -> None:
    body = forced("alpha beta 👋 gamma", n_probs=2)
    plain = await client.post("/completion", body)
    reading = await client.stream(body)
    assert reading.content == plain["content"] == "alpha beta 👋 gamma"
    assert reading.settings is not None and reading.settings["grammar"] == body["grammar"]
    assert reading.pieces[0]["multimodal"] is False
    told = [entry["content"] for entry in reading.pieces[-1]["completion_probabilities"]]
    assert told == [entry["content"] for entry in plain["completion_probabilities"]]
    assert all(0 <= other["prob"] <= 1 for entry in plain["completion_probabilities"] for other in entry["probs"])


async def test_a_stream_that_fails_is_noted_and_not_taken_for_a_whole_text(client: OldClient) -> None:
    reading = await client.stream(ask(n_predict=-1, n_keep=0), cancels=True)
    assert [error["type"] for error in reading.errors] == ["cancelled_error"]
    assert reading.settings is None
    assert reading.pieces[-1]["error"] == reading.errors[0], "who reads events is told too"


async def test_a_prompt_that_does_not_fit_is_cut_in_blocks(client: OldClient) -> None:
    said = await client.post("/completion", ask("x " * 2 * N_CTX, n_keep=10))
    assert said["truncated"] and said["tokens_evaluated"] < N_CTX
    assert said["prompt"] == "x " * 2 * N_CTX, "it comes back as it was sent"
    chat = {"messages": [{"role": "user", "content": "x " * 600}], "max_tokens": 4}
    answered = await client.post("/v1/chat/completions", chat)
    assert answered["usage"]["prompt_tokens"] < N_CTX


async def test_a_full_context_is_shifted_and_nothing_is_reused_unasked(client: OldClient) -> None:
    body = ask("one two three", n_predict=N_CTX + 20, temperature=0)
    said = [await client.post("/completion", body) for _ in range(2)]
    assert [(each["tokens_predicted"], each["truncated"]) for each in said] == [(N_CTX + 20, True)] * 2
    short = [await client.post("/completion", ask("one two three", **more)) for more in ({}, {"cache_prompt": True})]
    assert [each["timings"]["cache_n"] > 0 for each in short] == [False, True]


async def test_an_array_is_answered_in_an_object_by_every_name_of_the_path(client: OldClient) -> None:
    for path in ("/completion", "/completions", "/v1/completions"):
        results = (await client.post(path, ask() | {"prompt": ["Hi", [9906, "you"]]}))["results"]
        assert [result["prompt"] for result in results] == ["Hi", [9906, "you"]]
        assert {result["stopped_limit"] for result in results} == {True}


async def test_a_vector_is_bare_unless_it_is_asked_for_as_openai_does(client: OldClient) -> None:
    bare = (await client.post("/embedding", {"content": "hello"}))["embedding"]
    listed = await client.post("/v1/embeddings", {"input": ["hello", "you"], "model": "mine"})
    assert bare == pytest.approx(listed["data"][0]["embedding"], abs=1e-6)
    assert (listed["model"], len(listed["data"])) == ("mine", 2)


async def test_a_chat_is_streamed_to_its_last_piece_which_has_the_usage(client: OldClient) -> None:
    body = {**CHAT, "max_tokens": 6, "seed": 1, "ignore_eos": True, "model": "any"}
    async with client.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        lines = [line async for line in response.aiter_lines() if line]
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines]
    first, *middle, last = [piece["choices"][0] for piece in pieces]
    assert first["delta"] == {"role": "assistant"}
    plain = await client.post("/v1/chat/completions", body)
    text = "".join(choice["delta"]["content"] for choice in middle)
    assert text == plain["choices"][0]["message"]["content"]
    assert (last["finish_reason"], last["delta"]) == ("length", {})
    assert pieces[-1]["usage"]["completion_tokens"] == 6
    assert {piece["model"] for piece in pieces} == {plain["model"]} == {"any"}


async def test_a_chat_is_as_warm_as_openais_unless_told_otherwise(client: OldClient) -> None:
    body = {**CHAT, "max_tokens": 6, "seed": 1, "ignore_eos": True}
    unsaid, said, other = [
        (await client.post("/v1/chat/completions", body | more))["choices"][0]["message"]["content"]
        for more in ({}, {"temperature": 1.0, "top_p": 1.0}, {"temperature": 0.2, "top_p": 0.3})
    ]
    assert unsaid == said != other


async def test_the_openai_client_of_today_reads_it_too(client: OldClient) -> None:
    base = f"{client.http.base_url}/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as sdk:
        messages: Any = CHAT["messages"]
        stream = await sdk.chat.completions.create(model="any", messages=messages, max_tokens=4, stream=True)
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(texts)
