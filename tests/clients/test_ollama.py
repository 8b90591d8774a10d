"""The `ollama` client, unmodified, in its synchronous and its asynchronous form, and what stands on the wire."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import ollama
import pytest
from pydantic import BaseModel, SecretStr

from shared.bus import Bus
from shared.events import CallForm, ReplyForm
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker
from tests.api.sse_lines import data

FORM = ReplyForm(
    reasoning=("<think>", "</think>"),
    calls=CallForm(opening='<call>{"name": "', middle='", "arguments": ', closing="}</call>"),
)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def client_of(api: Api) -> ollama.AsyncClient:
    return ollama.AsyncClient(host=api.url, headers={"Connection": "close"})


@pytest.fixture
async def client(api: Api) -> AsyncIterator[ollama.AsyncClient]:
    async with client_of(api) as opened:
        yield opened


async def of_client(api: Api, work: Callable[[ollama.Client], Any]) -> Any:
    """What the synchronous client makes, in a thread of its own."""

    def run() -> Any:
        with ollama.Client(host=api.url, headers={"Connection": "close"}) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def test_both_clients_read_a_text(api: Api, client: ollama.AsyncClient) -> None:
    for said in (
        await client.generate("any", "say a|b|c"),
        await of_client(api, lambda sync: sync.generate("any", "say a|b|c")),
    ):
        assert (said.model, said.response, said.done, said.done_reason) == ("any", "abc", True, "stop")
        assert (said.prompt_eval_count, said.eval_count, said.context) == (7, 3, None)
        assert said.total_duration == said.load_duration + said.prompt_eval_duration + said.eval_duration > 0
        assert datetime.fromisoformat(said.created_at).tzinfo == UTC


async def test_both_clients_read_a_stream_of_a_text(api: Api, client: ollama.AsyncClient) -> None:
    chunks = [chunk async for chunk in await client.generate("any", "say a|b|c", stream=True)]
    listed = await of_client(api, lambda sync: list(sync.generate("any", "say a|b|c", stream=True)))
    for said in (chunks, listed):
        assert [chunk.response for chunk in said] == ["a", "b", "c", ""]
        assert [chunk.done for chunk in said] == [False, False, False, True]
        assert (said[-1].done_reason, said[-1].eval_count, said[0].eval_count) == ("stop", 3, None)


async def test_both_clients_read_a_chat(api: Api, client: ollama.AsyncClient) -> None:
    for said in (
        await client.chat("any", user("say a|b|c")),
        await of_client(api, lambda sync: sync.chat("any", user("say a|b|c"))),
    ):
        assert (said.message.role, said.message.content, said.message.tool_calls) == ("assistant", "abc", None)
        assert (said.done, said.done_reason, said.eval_count) == (True, "stop", 3)


async def test_both_clients_read_a_stream_of_a_chat(api: Api, client: ollama.AsyncClient) -> None:
    chunks = [chunk async for chunk in await client.chat("any", user("say a|b|c"), stream=True)]
    listed = await of_client(api, lambda sync: list(sync.chat("any", user("say a|b|c"), stream=True)))
    for said in (chunks, listed):
        assert [chunk.message.content for chunk in said] == ["a", "b", "c", ""]
        assert all(chunk.message.role == "assistant" for chunk in said)
        assert (said[-1].done, said[-1].done_reason) == (True, "stop")


async def test_a_limit_is_the_reason_that_a_text_ends_for(client: ollama.AsyncClient) -> None:
    said = await client.generate("any", "say a|b|c", options={"num_predict": 2})
    assert (said.response, said.done_reason, said.eval_count) == ("ab", "length", 2)


async def test_thinking_is_told_apart(worker: ScriptedWorker, client: ollama.AsyncClient) -> None:
    worker.reply = FORM
    prompt = "say <thi|nk>Hm|.</think>Y|es"
    chat, text = await client.chat("any", user(prompt)), await client.generate("any", prompt)
    assert (chat.message.thinking, chat.message.content) == ("Hm.", "Yes")
    assert (text.thinking, text.response) == ("Hm.", "Yes")
    chunks = [chunk async for chunk in await client.chat("any", user(prompt), stream=True)]
    assert "".join(chunk.message.thinking or "" for chunk in chunks) == "Hm."
    assert "".join(chunk.message.content or "" for chunk in chunks) == "Yes"
    plain = await client.chat("any", user(prompt), think=False)
    assert (plain.message.thinking, plain.message.content) == (None, "<think>Hm.</think>Yes")


async def test_a_model_that_does_not_think_is_not_asked_to(client: ollama.AsyncClient) -> None:
    with pytest.raises(ollama.ResponseError, match='"any" does not support thinking') as refused:
        await client.chat("any", user("say a"), think="low")
    assert refused.value.status_code == 400


def add(a: int, b: int = 2) -> int:
    """Adds.

    Args:
      a: The one.
      b: The other.
    """
    return a + b


async def test_calls_of_functions_come_with_their_arguments(worker: ScriptedWorker, client: ollama.AsyncClient) -> None:
    worker.reply = FORM
    prompt = 'say Well.<call>{"name": "add", |"arguments": {"a": |1}}</call>'
    whole = await client.chat("any", user(prompt), tools=[add])
    chunks = [chunk async for chunk in await client.chat("any", user(prompt), tools=[add], stream=True)]
    calls = [call for chunk in chunks for call in chunk.message.tool_calls or ()]
    for call, *more in (whole.message.tool_calls, calls):
        assert (call.function.name, call.function.arguments, more) == ("add", {"a": 1}, [])
    assert whole.message.content == "Well."
    told = await client.chat(
        "any",
        [
            *user("add"),
            whole.message,
            {"role": "tool", "content": str(add(**whole.message.tool_calls[0].function.arguments)), "tool_name": "add"},
            *user("say 3"),
        ],
        tools=[add],
    )
    assert told.message.content == "3"


class Friend(BaseModel):
    name: str
    age: int


async def test_a_format_may_be_what_pydantic_makes_of_a_class(client: ollama.AsyncClient) -> None:
    said = await client.chat("any", user('say {"name":|"Ann",|"age":3}'), format=Friend.model_json_schema())
    assert Friend.model_validate_json(said.message.content) == Friend(name="Ann", age=3)


async def test_a_strange_format_is_refused_in_ollamas_words(api: Api) -> None:
    answer = await api.client.post("/api/generate", json={"prompt": "say a", "format": "xml"})
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": 'invalid format: "xml"; expected "json" or a valid JSON Schema'},
    )


async def test_a_model_without_eyes_takes_no_image(client: ollama.AsyncClient) -> None:
    for asked in (
        client.generate("any", "say a", images=[PNG]),
        client.chat("any", [{"role": "user", "content": "say a", "images": [PNG]}]),
    ):
        with pytest.raises(ollama.ResponseError, match="image input is not supported") as refused:
            await asked
        assert refused.value.status_code == 501


async def test_a_model_with_eyes_is_shown_images_where_they_stand(settings: ApiSettings, bus: Bus) -> None:
    async with ScriptedWorker(bus, has_vision=True), serve(settings) as api, client_of(api) as client:
        before = await client.generate("any", "see a", images=[PNG], options={"num_predict": 9}, raw=True)
        within = await client.chat("any", [{"role": "user", "content": "see a[img]b", "images": [PNG]}])
        with pytest.raises(ollama.ResponseError, match=r"messages\[0\].images\[0\]") as refused:
            await client.chat("any", [{"role": "user", "content": "see", "images": ["AAAA"]}])
    assert before.response and within.message.content == f"a*b{PNG}"
    assert refused.value.status_code == 400


async def test_probabilities_are_told_to_those_who_ask(client: ollama.AsyncClient) -> None:
    said = await client.chat("any", user("say a|b"), logprobs=True, top_logprobs=3)
    chunks = [
        chunk async for chunk in await client.generate("any", "say a|b", logprobs=True, top_logprobs=3, stream=True)
    ]
    for told in (said.logprobs, [entry for chunk in chunks for entry in chunk.logprobs or ()]):
        assert [entry.token for entry in told] == ["a", "b"]
        assert [len(entry.top_logprobs) for entry in told] == [3, 3]
    assert (await client.chat("any", user("say a"), top_logprobs=3)).logprobs is None


async def test_vectors_have_length_one_and_the_old_ones_have_their_own(api: Api, client: ollama.AsyncClient) -> None:
    several = await client.embed("any", ["a", "b", "a"])
    first, second, third = (np.array(vector) for vector in several.embeddings)
    assert np.linalg.norm(first) == pytest.approx(1.0, abs=1e-6)
    assert np.array_equal(first, third) and not np.array_equal(first, second)
    assert several.prompt_eval_count == 3 and several.model == "any"
    one = await of_client(api, lambda sync: sync.embed("any", "a"))
    assert np.allclose(one.embeddings, [first])
    assert len((await client.embeddings("any", "a")).embedding) == len(first)


async def test_nothing_to_embed_gives_nothing(api: Api, client: ollama.AsyncClient) -> None:
    assert (await client.embed("any", "")).embeddings == []
    assert (await client.embed("any", [])).embeddings == []
    assert (await client.embeddings("any", "")).embedding == []
    for body in ({}, {"input": None}):
        assert (await api.client.post("/api/embed", json=body)).json() == {"model": "tiny", "embeddings": []}


async def test_vectors_are_not_shortened_and_inputs_are_not_empty(client: ollama.AsyncClient) -> None:
    for asked in (client.embed("any", "a", dimensions=2), client.embed("any", ["a", ""])):
        with pytest.raises(ollama.ResponseError) as refused:
            await asked
        assert refused.value.status_code == 400


async def test_who_says_nothing_wants_the_model_to_be_there_or_gone(client: ollama.AsyncClient) -> None:
    assert (await client.generate("any")).done_reason == "load"
    assert (await client.generate("any", keep_alive="5m")).done_reason == "load"
    assert (await client.generate("any", keep_alive=0)).done_reason == "unload"
    loaded = await client.chat("any", [])
    assert (loaded.message.content, loaded.done, loaded.done_reason) == ("", True, "load")
    assert [chunk.done_reason async for chunk in await client.generate("any", stream=True)] == ["load"]
    assert [chunk.done_reason async for chunk in await client.chat("any", keep_alive="0s", stream=True)] == ["unload"]


async def test_models_are_listed(settings: ApiSettings, bus: Bus) -> None:
    card = {"architecture": "llama", "quantization": "Q4_K_M", "modified_at": 1.7e9, "n_params": 134_515_008}
    async with ScriptedWorker(bus, **card), serve(settings) as api, client_of(api) as client:
        (listed,) = (await client.list()).models
        (running,) = (await client.ps()).models
    assert (listed.model, listed.modified_at) == ("tiny", datetime.fromtimestamp(1.7e9, UTC))
    assert listed.details.family == "llama" and listed.details.quantization_level == "Q4_K_M"
    assert listed.details.parameter_size == "134.52M" and listed.details.format == "gguf"
    assert (running.model, running.context_length, running.digest) == ("tiny", 64, listed.digest)
    assert running.expires_at is not None and running.expires_at > datetime.now(UTC)
    assert len(listed.digest) == 64


async def test_a_model_of_unknown_age_is_listed_all_the_same(client: ollama.AsyncClient) -> None:
    assert (await client.list()).models[0].modified_at == datetime.min.replace(tzinfo=UTC)


async def test_all_is_shown_of_a_model_by_either_of_its_names(client: ollama.AsyncClient, api: Api) -> None:
    shown = await client.show("tiny:latest")
    assert shown.modelinfo["general.name"] == "tiny" and shown.template == "{{ messages }}"
    assert shown.capabilities == ["completion"]
    older = await api.client.post("/api/show", json={"name": "tiny"})
    assert older.json()["capabilities"] == ["completion"]


async def test_with_several_models_a_name_must_be_one_of_theirs(
    settings: ApiSettings, bus: Bus, worker: ScriptedWorker
) -> None:
    async with ScriptedWorker(bus, model="other", worker_id="w2"), serve(settings) as api, client_of(api) as client:
        assert [model.model for model in (await client.list()).models] == ["other", "tiny"]
        assert (await client.generate("tiny:latest", "say a")).model == "tiny:latest"
        for asked in (
            client.generate("none", "say a"),
            client.generate("none"),
            client.chat("none", user("say a")),
            client.chat("none", user("say a"), stream=True),
            client.embed("none", "a"),
            client.embed("none", ""),
            client.embeddings("none", "a"),
            client.show("none"),
        ):
            with pytest.raises(ollama.ResponseError) as refused:
                await read_all(await asked)
            assert (refused.value.status_code, refused.value.error) == (404, "model 'none' not found")


async def read_all(said: Any) -> None:
    if isinstance(said, AsyncIterator):
        async for _ in said:
            pass


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_input_that_is_too_long_says_so_with_its_status(client: ollama.AsyncClient, is_stream: bool) -> None:
    with pytest.raises(ollama.ResponseError) as refused:
        await read_all(await client.chat("any", user("long"), stream=is_stream))
    assert (refused.value.status_code, refused.value.error) == (400, "the input length exceeds the context length")


async def test_an_error_in_the_middle_of_a_stream_is_a_line(client: ollama.AsyncClient, api: Api) -> None:
    chunks = []
    with pytest.raises(ollama.ResponseError, match="its workers died"):
        async for chunk in await client.chat("any", user("die a|b"), stream=True):
            chunks.append(chunk.message.content)
    assert chunks == ["a", "b"]
    lines = await api.stream("/api/generate", {"prompt": "die a"})
    assert json.loads(lines[-1]) == {"error": "its workers died"}


async def test_a_stream_is_lines_unless_it_is_told_to_be_events(api: Api) -> None:
    plain = {"Accept": "application/x-ndjson, application/json"}
    async with api.client.stream("POST", "/api/generate", json={"prompt": "say a|b"}, headers=plain) as response:
        lines = [json.loads(line) async for line in response.aiter_lines()]
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.headers["x-job-id"].startswith("job_")
    accept = {"Accept": "text/event-stream"}
    async with api.client.stream("POST", "/api/generate", json={"prompt": "say a|b"}, headers=accept) as response:
        events = data([line async for line in response.aiter_lines()])
    assert response.headers["content-type"].startswith("text/event-stream")
    assert [line["response"] for line in lines] == [event["response"] for event in events] == ["a", "b", ""]
    assert events[-1]["done"] and lines[-1]["done"]
    load = await api.client.post("/api/generate", json={}, headers=accept)
    assert data(load.text.split("\n"))[0]["done_reason"] == "load"


async def test_a_silent_stream_is_kept_open_by_objects_that_the_client_reads(
    settings: ApiSettings, worker: ScriptedWorker
) -> None:
    impatient = settings.model_copy(update={"accept_wait_s": 0.05, "keep_alive_s": 0.05})
    async with serve(impatient) as api, client_of(api) as client:
        words: list[str] = []
        async for chunk in await client.generate("any", "shut a|b", stream=True):
            words.append(chunk.response)
            if words == ["", ""]:
                worker.go.set()
        assert words[:2] == ["", ""] and [word for word in words if word] == ["a", "b"]
        worker.go.clear()
        accept = {"Accept": "text/event-stream"}
        lines = []
        async with api.client.stream("POST", "/api/chat", json={"messages": user("shut a")}, headers=accept) as raw:
            async for line in raw.aiter_lines():
                lines.append(line)
                if line == ": keep-alive":
                    worker.go.set()
        assert [event["message"]["content"] for event in data(lines)] == ["a", ""]


async def test_a_client_that_goes_frees_its_slot(api: Api, worker: ScriptedWorker) -> None:
    async with api.client.stream("POST", "/api/chat", json={"messages": user("hold a|b")}) as response:
        async for _ in response.aiter_lines():
            break
    [job_id] = await worker.has_taken(1)
    await worker.cancelled[job_id].wait()
    await worker.is_idle()


async def test_models_are_not_managed_here(client: ollama.AsyncClient, api: Api) -> None:
    for asked in (
        client.pull("x"),
        client.push("x"),
        client.create("x", from_="y"),
        client.copy("x", "y"),
        client.delete("x"),
    ):
        with pytest.raises(ollama.ResponseError, match="managed where workers are started") as refused:
            await asked
        assert refused.value.status_code == 501
    for method, status in (("POST", 501), ("HEAD", 501), ("GET", 405)):
        assert (await api.client.request(method, "/api/blobs/sha256:0")).status_code == status


async def test_a_server_is_taken_for_alive(api: Api) -> None:
    for path, words in (("/", "Ollama is running"), ("/api/version", '{"version":"')):
        assert words in (await api.client.get(path)).text
        assert (await api.client.head(path)).status_code == 200
    assert (await api.client.head("/api/tags")).status_code == 200


async def test_what_no_route_answers_looks_as_the_client_expects(settings: ApiSettings, api: Api) -> None:
    small = settings.model_copy(update={"max_body_mb": 0.0001, "api_key": [SecretStr("key")]})
    async with serve(small) as closed:
        key = {"Authorization": "Bearer key"}
        answers = {
            401: await closed.client.post("/api/chat", json={}),
            413: await closed.client.post("/api/chat", content=b"[" * 200, headers=key),
            404: await closed.client.post("/api/nothing", json={}, headers=key),
            405: await closed.client.get("/api/chat", headers=key),
            400: await closed.client.post("/api/chat", content=b"{bad", headers=key),
        }
    for status, answer in answers.items():
        assert answer.status_code == status
        (message,) = answer.json().values()
        assert isinstance(message, str) and answer.json().keys() == {"error"}


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"{bad", b'{"model":NaN}', b'{"prompt":"a\\ud800b"}', b'{"prompt":"\xff"}', b"[" * 100_000]
)
@pytest.mark.parametrize("path", ["/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/show"])
async def test_a_body_that_is_no_object_is_the_clients_fault(api: Api, path: str, body: bytes) -> None:
    answer = await api.client.post(path, content=body)
    assert answer.status_code == 400 and isinstance(answer.json()["error"], str)


async def test_a_megabyte_of_nonsense_harms_nobody(api: Api, client: ollama.AsyncClient) -> None:
    for path in ("/api/generate", "/api/chat", "/api/embed"):
        assert (await api.client.post(path, content=secrets.token_bytes(1_000_000))).status_code == 400
    with pytest.raises(ollama.ResponseError) as refused:
        await client.generate("any", "say a", options={"stop": ["x" * 1_000_000]})
    assert refused.value.status_code == 400
    assert (await client.generate("any", "say a")).response == "a"


async def test_a_refused_request_never_becomes_a_job(api: Api, worker: ScriptedWorker) -> None:
    for body in (
        {"prompt": "say a", "options": {"top_k": "x"}},
        {"prompt": "say a", "keep_alive": "soon"},
        {"prompt": "say a", "template": "{{ .Prompt }}"},
        {"prompt": "say a", "context": [1, 2]},
        {"prompt": "say a", "raw": True, "system": "x"},
        {"prompt": "say a", "suffix": "b"},
        {"prompt": "say a", "think": 5},
    ):
        answer = await api.client.post("/api/generate", json=body)
        assert answer.status_code in (400, 501), body
    assert worker.taken == []


async def test_a_job_is_answered_whole_where_its_body_says_nothing(api: Api) -> None:
    for more in ({}, {"stream": None}, {"stream": False}):
        body = {"model": "x", "messages": user("say a|b"), **more}
        made = (await api.client.post("/v1/jobs", json={"endpoint": "/api/chat", "body": body})).json()
        [*_, done] = data((await api.client.get(f"/v1/jobs/{made['id']}/events")).text.split("\n"))
        assert ollama.ChatResponse(**done["result"]).message.content == "ab"
    for body in ({"prompt": "say a", "stream": True}, {"prompt": ""}):
        refused = await api.client.post("/v1/jobs", json={"endpoint": "/api/generate", "body": body})
        assert refused.status_code == 400
