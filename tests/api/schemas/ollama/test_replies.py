"""What ollama's clients hear of a reply: lines or events that say the same as the whole answer, and an end."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from api.schemas.ask import Heard, Origin
from api.schemas.ollama.replies import Form, ReplyShape, Wire, as_message, as_response, idle_json
from api.schemas.tools import call_id
from shared.errors import EngineFailed, UnknownModel
from shared.events import (
    Accepted,
    Answer,
    CallForm,
    ChosenLogprob,
    Event,
    Finished,
    Logprob,
    ReplyForm,
    StopType,
    Timings,
    Tokens,
)

ORIGIN = Origin("job_0_abc", "tiny", 1_700_000_000)
CALLS = CallForm(opening='<call>{"name": "', middle='", "arguments": ', closing="}</call>")
FORM = ReplyForm(reasoning=("<think>", "</think>"), calls=CALLS)
THOUGHT = "<think>Hm.</think>"
CALL = '<call>{"name": "add", "arguments": {"a": 1, "b": [2]}}</call>'
TIMINGS = Timings(queue_ms=1.5, cache_n=3, prompt_n=4, prompt_ms=8.25, predicted_n=5, predicted_ms=10.0)


def answer_of(text: str, **more: Any) -> Answer:
    return Answer(
        text=text,
        ids=(1,),
        prompt="",
        prompt_tokens=7,
        stop_type=more.pop("stop_type", StopType.EOS),
        seed=1,
        timings=TIMINGS,
        reply=FORM,
        **more,
    )


def heard(pieces: Sequence[str], *, form: ReplyForm | None = FORM) -> list[Event]:
    tokens = [Tokens(ids=(1,), text=piece) for piece in pieces]
    end = Finished(status="succeeded", parts=(answer_of("".join(pieces)),))
    return [Accepted(prompt_tokens=7, n_ctx=64, reply=form), *tokens, end]


def spoken(shape: ReplyShape, events: Sequence[Event]) -> list[dict[str, Any]]:
    said = b"".join(shape.say(Heard(0, None, event)) for event in events) + shape.end()
    return [json.loads(line) for line in said.splitlines()]


def streamed(text: str, *, size: int = 1, form: Form = as_message, **more: Any) -> list[dict[str, Any]]:
    """The lines of a text that comes in pieces of so many characters."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return spoken(ReplyShape(ORIGIN, form, model="asked", **more), heard(pieces))


def together(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that the lines of a stream make up, as a client puts it together."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in lines:
        for key, value in line["message"].items():
            if key != "role":
                message[key] = message[key] + value if key in message else value
    return message


TEXTS = [
    "Hello",
    "",
    f"{THOUGHT}Yes",
    CALL,
    f"{THOUGHT}Let me add.{CALL}{CALL}",
    "<think>never closed",
    f'{CALL}<call>{{"name": "add", "arguments": {{"a": ',
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_says_what_the_whole_answer_says(text: str, size: int) -> None:
    whole = ReplyShape(ORIGIN, as_message, model="asked").body([Finished(status="succeeded", parts=(answer_of(text),))])
    lines = streamed(text, size=size)
    assert together(lines) == whole["message"]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    ending = {key: value for key, value in whole.items() if key not in ("message", "created_at")}
    assert {key: value for key, value in lines[-1].items() if key not in ("message", "created_at")} == ending


def test_thinking_stands_beside_the_text() -> None:
    assert together(streamed(f"{THOUGHT}Yes")) == {"role": "assistant", "content": "Yes", "thinking": "Hm."}
    lines = streamed(f"{THOUGHT}Yes", form=as_response)
    assert "".join(line.get("thinking", "") for line in lines) == "Hm."
    assert "".join(line["response"] for line in lines) == "Yes"


def test_thinking_that_was_not_wanted_is_left_where_it_is() -> None:
    assert together(streamed(f"{THOUGHT}Yes", splits_thinking=False))["content"] == f"{THOUGHT}Yes"


def test_a_call_comes_whole_with_an_object_for_its_arguments() -> None:
    calls = [call for line in streamed(CALL + CALL) for call in line["message"].get("tool_calls", ())]
    assert calls == [
        {
            "id": call_id("job_0_abc", 0, place),
            "function": {"index": place, "name": "add", "arguments": {"a": 1, "b": [2]}},
        }
        for place in (0, 1)
    ]


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', ""])
def test_a_call_that_nobody_could_make_is_left_out(arguments: str) -> None:
    text = CALL.replace('{"a": 1, "b": [2]}', arguments)
    whole = ReplyShape(ORIGIN, as_message, model=None).body([Finished(status="succeeded", parts=(answer_of(text),))])
    assert "tool_calls" not in whole["message"]
    assert all("tool_calls" not in line["message"] for line in streamed(text))


def test_the_end_says_why_and_what_it_took_in_whole_nanoseconds() -> None:
    last = streamed("Hello")[-1]
    assert {key: last[key] for key in last if key not in ("created_at", "message")} == {
        "model": "asked",
        "done": True,
        "done_reason": "stop",
        "total_duration": 19_750_000,
        "load_duration": 1_500_000,
        "prompt_eval_count": 7,
        "prompt_eval_cached_count": 3,
        "prompt_eval_duration": 8_250_000,
        "eval_count": 5,
        "eval_duration": 10_000_000,
    }
    assert all(type(last[key]) is int for key in last if "duration" in key or "count" in key)


def test_a_text_that_was_cut_off_says_so() -> None:
    ending = Finished(status="succeeded", parts=(answer_of("a", stop_type=StopType.LIMIT),))
    assert ReplyShape(ORIGIN, as_response, model=None).body([ending])["done_reason"] == "length"


def test_times_are_of_rfc_3339_with_a_fraction() -> None:
    ending = Finished(status="succeeded", parts=(answer_of("a"),))
    assert ReplyShape(ORIGIN, as_response, model=None).body([ending])["created_at"] == "2023-11-14T22:13:20.000000Z"
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["created_at"]) for line in streamed("abc"))


def test_two_readings_of_an_ending_are_equal() -> None:
    ending = Finished(status="succeeded", parts=(answer_of(THOUGHT + CALL),))
    first, second = (ReplyShape(ORIGIN, as_message, model=None).body([ending]) for _ in range(2))
    assert first == second


def test_a_model_without_another_name_is_called_by_its_own() -> None:
    assert ReplyShape(ORIGIN, as_response, model=None).body([Finished(status="succeeded", parts=(answer_of("a"),))])[
        "model"
    ] == ("tiny")


def test_a_second_attempt_goes_on_in_the_middle_of_a_thought() -> None:
    first, *rest = heard(["<think>Hm", ".</think>Yes"])
    lines = spoken(ReplyShape(ORIGIN, as_message, model=None), [first, rest[0], first, *rest[1:]])
    assert together(lines) == {"role": "assistant", "content": "Yes", "thinking": "Hm."}


def test_a_reply_whose_beginning_nobody_heard_is_content() -> None:
    lines = spoken(ReplyShape(ORIGIN, as_message, model=None), heard(["a", "b"])[1:])
    assert together(lines)["content"] == "ab"


def test_what_keeps_a_stream_of_lines_open_is_an_object_that_says_nothing() -> None:
    framing = ReplyShape(ORIGIN, as_message, model="asked").framing
    assert framing.headers["Content-Type"] == "application/x-ndjson"
    line = framing.keep_alive()
    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    nothing = json.loads(line)
    assert (nothing["model"], nothing["done"]) == ("asked", False)
    assert nothing["message"] == {"role": "assistant", "content": ""}


def test_events_say_what_lines_say() -> None:
    shape = ReplyShape(ORIGIN, as_response, model=None, wire=Wire.EVENTS)
    said = b"".join(shape.say(Heard(0, None, event)) for event in heard(["a"]))
    assert [json.loads(event.removeprefix(b"data: "))["response"] for event in said.split(b"\n\n")[:-1]] == ["a", ""]
    assert shape.framing.keep_alive() == b": keep-alive\n\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (EngineFailed("no"), "no"),
        (UnknownModel("no", model="m"), "model 'm' not found"),
        (KeyError("a bug"), "Internal server error"),
    ],
)
def test_a_stream_that_cannot_go_on_ends_with_an_error(error: Exception, message: str) -> None:
    assert ReplyShape(ORIGIN, as_message, model=None).failed(error) == b'{"error":"%s"}\n' % message.encode()


def test_probabilities_come_with_the_piece_that_they_are_of() -> None:
    piece = base64.b64encode("é".encode()).decode()
    entry = ChosenLogprob(id=5, piece=piece, logprob=-0.5, top=(Logprob(id=5, piece=piece, logprob=-0.5),))
    shape = ReplyShape(ORIGIN, as_response, model=None)
    told = {"token": "é", "logprob": -0.5, "bytes": [195, 169]}
    [line] = spoken(shape, [Tokens(ids=(5,), text="", logprobs=(entry,))])
    (said,) = line["logprobs"]
    assert told.items() <= said.items() and told.items() <= said["top_logprobs"][0].items()
    whole = shape.body([Finished(status="succeeded", parts=(answer_of("é", logprobs=(entry,)),))])
    assert whole["logprobs"] == line["logprobs"]


@pytest.mark.parametrize(("form", "said"), [(as_response, {"response": ""}), (as_message, {"message": {}})])
def test_an_idle_answer_is_done_at_once(form: Form, said: dict[str, Any]) -> None:
    idle = idle_json(form, "m", "load")
    assert (idle["model"], idle["done"], idle["done_reason"]) == ("m", True, "load")
    assert said.keys() <= idle.keys()
