"""What clients of llama.cpp's server of May 2024 read, when that is whom the server is to speak with."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from shared.jobs import Compat
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker
from tests.api.sse_lines import data

CHAT = {"messages": [{"role": "user", "content": "say a|b"}]}


@pytest.fixture
async def old(settings: ApiSettings, worker: ScriptedWorker) -> AsyncIterator[Api]:
    async with serve(settings.model_copy(update={"compat": Compat.OF_2024})) as served:
        yield served


async def test_an_array_of_prompts_is_answered_in_an_object_and_each_prompt_comes_back(old: Api) -> None:
    prompts = ["say a", [5, 6], ["say", 5]]
    results = (await old.client.post("/completion", json={"prompt": prompts})).json()["results"]
    assert [result["prompt"] for result in results] == prompts
    assert (await old.client.post("/completion", json={"prompt": ["say a"]})).json()["prompt"] == ["say a"]


@pytest.mark.parametrize("path", ["/completion", "/completions", "/v1/completions", "/infill"])
async def test_every_path_that_completes_answers_natively(old: Api, path: str) -> None:
    request = {
        "prompt": "say a|b",
        "input_prefix": "say a|b",
        "input_suffix": "c",
        "logit_bias": [[5, 1.5], [7, False]],
    }
    answer = (await old.client.post(path, json=request)).json()
    assert (answer["content"], answer["prompt"], answer["stopped_eos"]) == ("ab", "say a|b", True)
    assert answer["generation_settings"]["logit_bias"] == [[5, 1.5], [7, None]]
    *pieces, last = data(await old.stream(path, request))
    assert {(piece["stop"], piece["multimodal"], piece["id_slot"]) for piece in pieces} == {(False, False, -1)}
    assert (last["stop"], last["content"], last["prompt"]) == (True, "", "say a|b")


async def test_a_stream_repeats_all_probabilities_at_its_end(old: Api) -> None:
    *pieces, last = data(await old.stream("/completion", {"prompt": "say a|b", "n_probs": 2}))
    told = [entry for piece in pieces for entry in piece["completion_probabilities"]]
    assert last["completion_probabilities"] == told
    assert [(entry["content"], len(entry["probs"])) for entry in told] == [("a", 2), ("b", 2)]


async def test_a_failed_stream_has_a_line_for_clients_of_then_and_one_for_all_others(old: Api) -> None:
    for path, request in (("/completion", {"prompt": "die a"}), ("/v1/chat/completions", chat("die a"))):
        lines = [line for line in await old.stream(path, request) if line]
        *_, named, told = lines
        error = json.loads(named.removeprefix("error: "))
        assert (error["code"], error["message"]) == (500, "its workers died")
        assert json.loads(told.removeprefix("data: "))["error"] == error
        assert "stop" not in told or '"stop":false' in told


def chat(content: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}]}


async def test_a_chat_calls_the_model_as_it_was_called_and_ends_with_usage(old: Api) -> None:
    request = CHAT | {"model": "gpt-3.5-turbo", "n_predict": 9}
    whole = (await old.client.post("/v1/chat/completions", json=request)).json()
    assert (whole["model"], whole["choices"][0]["message"]) == ("gpt-3.5-turbo", {"role": "assistant", "content": "ab"})
    lines = await old.stream("/v1/chat/completions", request)
    assert "data: [DONE]" not in lines
    first, *_, last = data(lines)
    assert first["choices"][0]["delta"] == {"role": "assistant"}
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["delta"]) == ("stop", {})
    assert last["usage"] == whole["usage"]
    assert {piece["model"] for piece in data(lines)} == {"gpt-3.5-turbo"}


async def test_a_chats_probabilities_come_beside_its_choices(old: Api) -> None:
    request = CHAT | {"n_probs": 2}
    answer = (await old.client.post("/v1/chat/completions", json=request)).json()
    assert [entry["content"] for entry in answer["completion_probabilities"]] == ["a", "b"]


@pytest.mark.parametrize("path", ["/embedding", "/embeddings", "/v1/embeddings"])
async def test_the_name_of_what_is_embedded_chooses_the_answer(old: Api, path: str) -> None:
    content = (await old.client.post(path, json={"content": "a"})).json()
    several = (await old.client.post(path, json={"input": ["a", "b"]})).json()
    assert content == {"embedding": several["data"][0]["embedding"]}
    assert (several["object"], [item["index"] for item in several["data"]]) == ("list", [0, 1])
    assert (await old.client.post(path, json={"content": ["a", "b"]})).status_code == 400
    assert (await old.client.post(path, json={})).status_code == 400


async def test_a_slots_next_token_is_an_object_and_a_full_house_has_a_word(old: Api, worker: ScriptedWorker) -> None:
    slots = (await old.client.get("/slots")).json()
    assert {slot["next_token"]["has_next_token"] for slot in slots} == {False}
    assert {slot["next_token"]["stopping_word"] for slot in slots} == {""}
    assert (await old.client.get("/health")).json()["status"] == "ok"
    await worker.announce("ready", n_busy=worker.n_slots)
    await old.client.get("/slots")  # which looks
    full = await old.client.get("/health?include_slots")
    assert (full.status_code, full.json()["status"], full.json()["slots_idle"]) == (200, "no slot available", 0)
    assert full.json()["slots"][0]["next_token"]["has_next_token"] is True
    assert (await old.client.get("/health?fail_on_no_slot")).status_code == 503


async def test_a_job_is_read_as_it_was_made_whomever_the_server_speaks_with_later(
    old: Api, settings: ApiSettings
) -> None:
    made = await old.client.post(
        "/v1/jobs", json={"endpoint": "/v1/completions", "body": {"prompt": ["say a", "say b"]}}
    )
    path = f"/v1/jobs/{made.json()['id']}"
    await old.client.get(f"{path}/events")  # to its end
    job = (await old.client.get(path)).json()
    assert [result["content"] for result in job["result"]["results"]] == ["a", "b"]
    async with serve(settings) as today:
        assert (await today.client.get(path)).json() == job
