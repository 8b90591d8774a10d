"""What a reply says as items: the same however its text comes, and the same in events as at the end."""

from __future__ import annotations

import base64
import random
from itertools import pairwise
from typing import Any

import pytest

from api.schemas.responses.output import Output
from api.schemas.tools import call_id
from shared.events import CallForm, ChosenLogprob, ReplyForm

CALLS = CallForm(opening='<tool_call>\n{"name": "', middle='", "arguments": ', closing="}\n</tool_call>")
FORM = ReplyForm(reasoning=("<think>", "</think>"), calls=CALLS)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


TEXTS = {
    "plain": "Hi there, {you}!",
    "thoughtful": "<think>\nHm, {x}.\n</think>\n\nIt is ü.",
    "calling": call("add", '{"a": {"b": "}"}}') + "\n" + call("sub", "{}"),
    "everything": "<think>Hm.</think>\n\nLet me see. " + call("add", '{"a": 1}') + "\nSo it is 1.",
    "cut in a call": "Well: " + call("add", '{"a": 1')[:-20],
    "nothing": "",
}


def read(pieces: list[str], form: ReplyForm | None = FORM, **more: Any) -> tuple[Output, list[dict[str, Any]]]:
    output = Output("job_0_a", form, **more)
    events = [event for piece in pieces for event in output.push(piece)]
    return output, events + output.close(is_cut=False)


def cut(text: str, dice: random.Random) -> list[str]:
    places = sorted(dice.choices(range(len(text) + 1), k=dice.randrange(30)))
    return [text[start:end] for start, end in pairwise([0, *places, len(text)])]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_items_are_the_same_however_the_text_is_cut(text: str) -> None:
    whole, _ = read([text])
    dice = random.Random(1)
    for _ in range(50):
        assert read(cut(text, dice))[0].items == whole.items


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_events_add_up_to_the_items(text: str) -> None:
    output, events = read(list(text))
    built: dict[int, dict[str, Any]] = {}
    for event in events:
        place = event["output_index"]
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert place == len(built)
                built[place] = event["item"]
            case "content_part.added":
                built[place]["content"].append(dict(event["part"]))
            case "output_text.delta" | "reasoning_text.delta":
                built[place]["content"][event["content_index"]]["text"] += event["delta"]
            case "function_call_arguments.delta":
                built[place]["arguments"] += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert event["text"] == built[place]["content"][0]["text"]
            case "content_part.done":
                assert event["part"] == built[place]["content"][0]
            case "function_call_arguments.done":
                assert event["arguments"] == built[place]["arguments"]
            case "output_item.done":
                assert event["item"] == built[place] | {"status": "completed"}
                built[place] = event["item"]
            case other:
                raise AssertionError(other)
        assert event.get("item_id", built[place]["id"]) == built[place]["id"]
    assert list(built.values()) == output.items


def test_thoughts_text_and_calls_are_items_in_the_order_in_which_they_are_said() -> None:
    output, _ = read([TEXTS["everything"]])
    assert [(item["type"], item["id"]) for item in output.items] == [
        ("reasoning", "rs_0_a_0"),
        ("message", "msg_0_a_1"),
        ("function_call", "fc_0_a_2"),
        ("message", "msg_0_a_3"),
    ]
    thought, said, called, then = output.items
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert said["content"][0]["text"] == "Let me see."
    assert (called["name"], called["arguments"], called["call_id"]) == ("add", '{"a": 1}', call_id("job_0_a", 0, 0))
    assert then["content"][0]["text"] == "So it is 1."
    assert output.n_reasoning == 3


def test_a_delta_tells_all_that_one_push_said() -> None:
    output = Output("job_0_a", None)
    assert [event["delta"] for event in output.push("{a}{b}c") if event["type"].endswith("delta")] == ["{a}{b}c"]


def test_only_the_last_item_of_a_cut_text_is_incomplete() -> None:
    output = Output("job_0_a", FORM)
    output.push(TEXTS["thoughtful"])
    output.close(is_cut=True)
    assert [item["status"] for item in output.items] == ["completed", "incomplete"]


def test_reasoning_is_left_in_the_text_where_nobody_wants_it_apart() -> None:
    output, _ = read([TEXTS["thoughtful"]], splits_reasoning=False)
    assert [item["content"][0]["text"] for item in output.items] == [TEXTS["thoughtful"]]


def entries(tokens: list[bytes]) -> list[ChosenLogprob]:
    return [
        ChosenLogprob(id=number, piece=base64.b64encode(token).decode(), logprob=-1.0)
        for number, token in enumerate(tokens)
    ]


TOKENS = [b"<think>", b"Hm", b"</think>", b"It", b" is \xc3", b"\xbc", b".", b"{", b"} "]


def probable() -> Output:
    return Output("job_0_a", FORM, probabilities=lambda told: [{"id": entry.id} for entry in told])


def test_probabilities_are_told_of_a_messages_tokens_alone() -> None:
    told, text = entries(TOKENS), b"".join(TOKENS).decode()
    whole = probable()
    whole.push(text, told)
    whole.close(is_cut=False)
    [thought, said] = whole.items
    assert "logprobs" not in thought["content"][0]
    assert [entry["id"] for entry in said["content"][0]["logprobs"]] == [3, 4, 5, 6, 7, 8]

    streamed = probable()
    events = []
    for start, end in ((0, 1), (1, 3), (3, 4), (4, 6), (6, 9)):  # as a worker tells them: never half a character
        events += streamed.push(b"".join(TOKENS[start:end]).decode(), told[start:end])
    events += streamed.close(is_cut=False)
    assert streamed.items == whole.items
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for delta in deltas for entry in delta] == said["content"][0]["logprobs"]
