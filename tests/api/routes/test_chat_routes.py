"""What a chat's model thinks and calls, as OpenAI's clients see it: whole, streamed, and read again later."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.events import CallForm, ReplyForm
from tests.api.conftest import Api
from tests.api.scripted_worker import ScriptedWorker
from tests.api.sse_lines import data

PATH = "/v1/chat/completions"
FORM = ReplyForm(
    reasoning=("<think>", "</think>"),
    calls=CallForm(opening='<tool_call>{"name": "', middle='", "arguments": ', closing="}</tool_call>"),
)
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = '<tool_|call>{"name": "f", "argum|ents": {"a": |1}}</tool_call>'


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(autouse=True)
def speaks_in_marks(worker: ScriptedWorker) -> None:
    worker.reply = FORM


async def chat(api: Api, text: str, **more: Any) -> dict[str, Any]:
    response = await api.client.post(PATH, json={"messages": user(text), **more})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


async def streamed(api: Api, text: str, **more: Any) -> list[dict[str, Any]]:
    """Choices of all chunks."""
    *chunks, done = data(await api.stream(PATH, {"messages": user(text), **more}))
    assert done == "[DONE]"
    return [chunk["choices"][0] for chunk in chunks]


def deltas(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice["delta"] for choice in choices]


async def test_reasoning_stands_beside_the_answer(api: Api) -> None:
    choice = await chat(api, "say <think>|hm|</think>|yes")
    assert choice["message"] == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    assert choice["finish_reason"] == "stop"
    assert "reasoning_content" not in (await chat(api, "say yes"))["message"]


async def test_reasoning_is_streamed_before_the_answer(api: Api) -> None:
    choices = await streamed(api, "say <thi|nk>hm |hm|</think>|yes")
    assert deltas(choices) == [
        {"role": "assistant", "content": None},
        {"reasoning_content": "hm"},
        {"reasoning_content": " hm"},
        {"content": "yes"},
        {},
    ]


@pytest.mark.parametrize(
    ("form", "message", "delta"),
    [
        ("auto", {"content": "yes", "reasoning_content": "hm"}, {"content": "yes"}),
        ("deepseek", {"content": "yes", "reasoning_content": "hm"}, {"content": "yes"}),
        ("none", {"content": "<think>hm</think>yes"}, {"content": "<think>hm</think>yes"}),
        (
            "deepseek-legacy",
            {"content": "<think>hm</think>yes", "reasoning_content": "hm"},
            {"content": "<think>hm</think>yes"},
        ),
    ],
)
async def test_a_client_says_where_reasoning_is_to_stand(api: Api, form: str, message: Any, delta: Any) -> None:
    asked = {"reasoning_format": form, "verbose": True}
    body = {"messages": user("say <think>hm</think>yes"), **asked}
    answer = (await api.client.post(PATH, json=body)).json()
    assert answer["choices"][0]["message"] == {"role": "assistant", **message}
    settings = answer["__verbose"]["generation_settings"]
    assert (settings["chat_format"], settings["reasoning_format"]) == ("peg-native", form)
    assert deltas(await streamed(api, "say <think>hm</think>yes", **asked))[-2] == delta


async def test_a_call_is_no_content(api: Api) -> None:
    choice = await chat(api, f"say {CALL}", tools=TOOLS)
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": None}
    assert call == {"id": call["id"], "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


async def test_a_call_is_streamed_as_its_arguments_come(api: Api) -> None:
    choices = await streamed(api, f"say Let me see.|{CALL}|{CALL}", tools=TOOLS)
    assert deltas(choices)[:2] == [{"role": "assistant", "content": None}, {"content": "Let me see."}]
    calls = [delta["tool_calls"][0] for delta in deltas(choices) if "tool_calls" in delta]
    for place in (0, 1):
        first, *rest = (call for call in calls if call["index"] == place)
        assert first == {
            "index": place,
            "id": first["id"],
            "type": "function",
            "function": {"name": "f", "arguments": ""},
        }
        assert all(call.keys() == {"index", "function"} for call in rest)
        assert "".join(call["function"]["arguments"] for call in rest) == '{"a": 1}'
        assert len(rest) == 2
    assert (choices[-1]["delta"], choices[-1]["finish_reason"]) == ({}, "tool_calls")
    assert all("tool_calls" not in delta or "content" not in delta for delta in deltas(choices))


async def test_a_call_that_the_limit_cut_is_told_as_far_as_it_came(api: Api) -> None:
    for n_words, message in (
        (1, {"content": "<tool_"}),
        (3, {"content": None, "calls": [("f", '{"a": ')]}),
        (4, {"content": None, "calls": [("f", '{"a": 1}')]}),
    ):
        choice = await chat(api, f"say {CALL}|more", tools=TOOLS, max_tokens=n_words)
        calls = [
            (call["function"]["name"], call["function"]["arguments"])
            for call in choice["message"].get("tool_calls", [])
        ]
        assert {"content": choice["message"]["content"], **({"calls": calls} if calls else {})} == message
        assert choice["finish_reason"] == "length"
        last = await streamed(api, f"say {CALL}|more", tools=TOOLS, max_tokens=n_words)
        assert last[-1]["finish_reason"] == "length"
        assert "".join(delta.get("content") or "" for delta in deltas(last)) == (message["content"] or "")


async def test_each_choice_is_read_by_itself(api: Api, worker: ScriptedWorker) -> None:
    worker.reply = ReplyForm(reasoning=("<think>", "</think>"))
    choices = await streamed(api, "say <think>hm|</think>|yes", n=2)
    for index, words in enumerate((["hm", "yes"], ["hm'", "'yes'"])):
        mine = deltas([choice for choice in choices if choice["index"] == index])
        told = "".join(delta.get("reasoning_content", "") for delta in mine)
        assert (told, "".join(delta.get("content") or "" for delta in mine)) == (words[0], words[1])


async def test_probabilities_of_held_back_text_come_with_what_follows(api: Api) -> None:
    asked: dict[str, Any] = {"logprobs": True, "tools": TOOLS}
    for text in (f"say Hi.|{CALL}", "say a|<tool|_c", "say <think>|hm|</think>|yes|\n"):
        whole = (await chat(api, text, **asked))["logprobs"]["content"]
        choices = await streamed(api, text, **asked)
        told = [entry for choice in choices for entry in (choice.get("logprobs") or {"content": []})["content"]]
        assert told == whole
        assert "".join(entry["token"] for entry in told) == text.removeprefix("say ").replace("|", "")


async def test_a_job_is_read_the_same_each_time(api: Api, worker: ScriptedWorker) -> None:
    body = {"messages": user(f"say <think>hm</think>{CALL}"), "tools": TOOLS}
    made = await api.client.post("/v1/jobs", json={"endpoint": PATH, "body": body})
    async with api.client.stream("GET", f"/v1/jobs/{made.json()['id']}/events") as events:
        told = data([line async for line in events.aiter_lines()])
    texts = "".join(event["text"] for event in told if "text" in event)
    assert texts == f"<think>hm</think>{CALL}".replace("|", ""), "events are the raw text"
    one, other = [(await api.client.get(f"/v1/jobs/{made.json()['id']}")).json()["result"] for _ in range(2)]
    assert one == other == told[-1]["result"]
    message = one["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", None)
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1}


async def test_an_answer_begins_with_the_words_that_it_goes_on_with(api: Api) -> None:
    messages = [*user("hi"), {"role": "assistant", "content": "say a|b"}]
    for asked, begins in (({}, "say a|b"), ({"continue_final_message": True}, "")):
        answer = (await api.client.post(PATH, json={"messages": messages, **asked})).json()
        assert answer["choices"][0]["message"]["content"] == begins + "ab"
        *chunks, _ = data(await api.stream(PATH, {"messages": messages, **asked}))
        told = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
        assert told[0] is None and "".join(filter(None, told)) == begins + "ab"


@pytest.mark.parametrize(
    ("asked", "told"), [("flex", "flex"), ("auto", "default"), ("default", "default"), (None, None)]
)
async def test_the_tier_is_told_to_who_asked_for_one(api: Api, asked: str | None, told: str | None) -> None:
    for path in (PATH, "/v1/completions"):
        body = {"messages": user("say a"), "prompt": "say a", "service_tier": asked}
        answers = [(await api.client.post(path, json=body)).json(), *data(await api.stream(path, body))[:-1]]
        assert {answer.get("service_tier") for answer in answers} == {told}


async def test_a_gap_is_filled_before_a_suffix(api: Api, worker: ScriptedWorker) -> None:
    body = {"prompt": "say a|b", "suffix": "c"}
    answer = (await api.client.post("/v1/completions", json=body)).json()
    assert (answer["object"], answer["choices"][0]["text"]) == ("text_completion", "ab")
    *chunks, done = data(await api.stream("/v1/completions", {**body, "echo": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "say a|bab" and done == "[DONE]"
    refused = await api.client.post("/v1/completions", json={"prompt": "lack a", "suffix": "c"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (501, "not_supported_error")
