"""Responses as bodies and as streams, told by a script: what the SDK's types take, and what a later reader gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from api.schemas.ask import Heard, Origin
from api.schemas.responses.body import ResponseBody, job_id_of, response_id_of
from api.schemas.responses.fields import asked_of
from api.schemas.responses.shape import ResponseShape
from shared.errors import BusUnavailable, Cancelled, Expired, PromptTooLong, SlotstreamError, WorkerDied
from shared.events import (
    Accepted,
    Answer,
    CallForm,
    Failure,
    Finished,
    Progress,
    ReplyForm,
    StopType,
    Timings,
    Tokens,
)
from shared.jobs import JobStatus
from tests.api.sse_lines import Event, events

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ORIGIN = Origin("job_0_abc", "tiny", 1000)
FORM = ReplyForm(
    reasoning=("<think>", "</think>"), calls=CallForm(opening='{"name": "', middle='", "arguments": ', closing="}")
)
PIECES = ("<think>", "Hm", ".</think>", "It is", " so.")
TIMINGS = Timings(queue_ms=1500, cache_n=3, prompt_n=4, prompt_ms=700.0, predicted_n=5, predicted_ms=1000.0)


def ended(stop_type: StopType = StopType.EOS) -> Finished:
    answer = Answer(
        text="".join(PIECES),
        ids=tuple(range(5)),
        prompt="",
        prompt_tokens=7,
        stop_type=stop_type,
        seed=1,
        timings=TIMINGS,
        reply=FORM,
    )
    return Finished(status="succeeded", parts=(answer,))


ACCEPTED = Heard(0, None, Accepted(prompt_tokens=7, n_ctx=64, reply=FORM))
TOLD = [Heard(0, number, Tokens(ids=(number,), text=text)) for number, text in enumerate(PIECES, 1)]
LOG = [ACCEPTED, *TOLD, Heard(0, 6, ended())]


def failed(error: SlotstreamError, status: Any = "failed") -> Finished:
    return Finished(status=status, failure=Failure.of(error))


def told(heard: Sequence[Heard], *, after: int = -1, error: Exception | None = None, **fields: Any) -> list[Event]:
    """The whole stream."""
    shape = ResponseShape(ORIGIN, asked_of({"input": "Hi", **fields}), after=after)
    raw = shape.opening() + b"".join(map(shape.say, heard)) + (shape.failed(error) if error else shape.end())
    return events(raw.decode().splitlines())


def names(stream: Sequence[Event]) -> list[str]:
    return [str(event.name).removeprefix("response.") for event in stream]


def body(finished: Finished, **fields: Any) -> dict[str, Any]:
    return ResponseBody(ORIGIN, asked_of({"input": "Hi", **fields})).ended(finished)


def test_a_stream_is_numbered_from_zero_and_each_event_named_by_its_type() -> None:
    stream = told(LOG)
    assert names(stream) == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        "completed",
    ]
    assert [event.data["sequence_number"] for event in stream] == list(range(len(stream)))
    assert [event.data["type"] for event in stream] == [event.name for event in stream]
    assert all(event.id is None for event in stream)


@pytest.mark.parametrize("background", [False, True])
def test_the_sdk_takes_every_event_for_what_it_is(background: bool) -> None:
    for event in told(LOG, background=background):
        assert EVENT.validate_python(event.data).type == event.name


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("end", [ended(), ended(StopType.LIMIT), failed(WorkerDied("gone"))])
def test_who_comes_later_gets_exactly_what_follows(background: bool, end: Finished) -> None:
    log = [*LOG[:-1], Heard(0, 6, end)]
    whole = told(log, background=background)
    for after in range(len(whole) + 2):
        assert told(log, background=background, after=after) == whole[after + 1 :]


def test_how_a_prompt_gets_on_moves_no_number() -> None:
    steps = [Heard(0, None, Progress(total=8, cache=2, processed=n, time_ms=1.0)) for n in (4, 8)]
    stream = told([ACCEPTED, *steps, *LOG[1:]], return_progress=True)
    progress = [event.data for event in stream if "prompt_progress" in event.data]
    assert [event["prompt_progress"]["processed"] for event in progress] == [2, 4, 8]
    assert {(event["type"], event["sequence_number"]) for event in progress} == {("response.in_progress", 1)}
    assert [event for event in stream if "prompt_progress" not in event.data] == told(LOG)
    assert told([ACCEPTED, *steps, *LOG[1:]], return_progress=True, after=1) == told(LOG, after=1)


def test_the_last_event_has_the_response_as_it_is_read_later_and_llama_cpps_timings() -> None:
    last = told(LOG)[-1].data
    assert last["response"] == body(ended())
    assert last["timings"]["predicted_n"] == 5


def test_a_body_is_what_the_sdk_takes_for_a_response() -> None:
    response = Response.model_validate(body(ended(), instructions="x", metadata={"a": "b"}, max_output_tokens=9))
    assert (response.id, response.status, response.created_at) == ("resp_0_abc", "completed", 1000)
    assert response.completed_at == 1003
    assert (response.output_text, response.metadata, response.max_output_tokens) == ("It is so.", {"a": "b"}, 9)
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (7, 5, 12)
    assert usage.input_tokens_details.cached_tokens == 3
    assert usage.output_tokens_details.reasoning_tokens == round(5 * len("Hm.") / len("".join(PIECES)))


def test_a_text_that_was_cut_is_incomplete() -> None:
    response = Response.model_validate(body(ended(StopType.LIMIT)))
    assert response.status == "incomplete" and response.completed_at is None
    assert response.incomplete_details and response.incomplete_details.reason == "max_output_tokens"
    assert [getattr(item, "status", None) for item in response.output] == ["completed", "incomplete"]
    assert names(told([*LOG[:-1], Heard(0, 6, ended(StopType.LIMIT))]))[-1] == "incomplete"


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        (failed(WorkerDied("gone")), "failed", "server_error"),
        (failed(PromptTooLong("long", n_prompt_tokens=9, n_ctx=8)), "failed", "invalid_prompt"),
        (failed(Expired("late"), "expired"), "failed", "server_error"),
        (failed(Cancelled("no"), "cancelled"), "cancelled", None),
    ],
)
def test_an_answer_that_never_came_says_why(end: Finished, status: str, code: str | None) -> None:
    response = Response.model_validate(body(end))
    assert (response.status, response.output, response.error and response.error.code) == (status, [], code)
    stream = told([ACCEPTED, Heard(0, 1, end)], background=True)
    assert names(stream) == ["created", "queued", "in_progress", "failed"]
    assert stream[-1].data["response"] == body(end, background=True)


def test_who_is_told_of_a_failure_as_an_error_gets_the_same_events() -> None:
    for error, status in ((WorkerDied("gone"), "failed"), (Cancelled("no"), "cancelled"), (Expired("late"), "expired")):
        assert told(LOG[:3], error=error) == told([*LOG[:3], Heard(0, 3, failed(error, status))])


def test_a_stream_that_cannot_go_on_says_so_and_loses_nobodys_place() -> None:
    stream = told(LOG[:3], error=BusUnavailable("The queue is away"))
    last = stream[-1]
    assert (last.name, last.data["sequence_number"]) == ("error", stream[-2].data["sequence_number"])
    assert last.data["message"] == last.data["error"]["message"] == "The queue is away"
    assert last.data["code"] == last.data["error"]["type"] == "unavailable_error"
    assert EVENT.validate_python(last.data).type == "error"
    assert told(LOG, after=last.data["sequence_number"]) == told(LOG)[len(stream) - 1 :]


def test_without_a_log_all_is_told_at_once_from_the_answer() -> None:
    stream = told([ACCEPTED, LOG[-1]])
    assert [event.data["sequence_number"] for event in stream] == list(range(len(stream)))
    assert [event.data["delta"] for event in stream if "delta" in event.data] == ["Hm.", "It is so."]
    assert stream[-1].data["response"] == body(ended())


@pytest.mark.parametrize("after", [0, 5, 50])
def test_without_a_log_whoever_comes_later_gets_the_end_at_least(after: int) -> None:
    stream = told([ACCEPTED, LOG[-1]], after=after)
    numbers = [event.data["sequence_number"] for event in stream]
    assert numbers == list(range(after + 1, after + 1 + len(stream)))
    assert stream[-1].name == "response.completed" and stream[-1].data["response"] == body(ended())
    assert names(told([Heard(0, 6, failed(WorkerDied("gone")))], after=after)) == ["failed"]


def test_what_stands_before_the_answer_is_the_state_of_its_job() -> None:
    waiting = ResponseBody(ORIGIN, asked_of({"input": "Hi", "background": True}))
    for status, name in ((JobStatus.QUEUED, "queued"), (JobStatus.RUNNING, "in_progress")):
        response = Response.model_validate(waiting.as_of(status))
        assert (response.status, response.background, response.output, response.usage) == (name, True, [], None)


def test_what_was_asked_is_told_again() -> None:
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    asked: dict[str, Any] = {
        "instructions": "Be brief.",
        "tools": [tool],
        "tool_choice": {"type": "function", "name": "add"},
        "parallel_tool_calls": False,
        "text": {"format": schema, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "truncation": "auto",
        "temperature": 0.5,
        "top_p": 0.25,
        "top_logprobs": 2,
        "service_tier": "flex",
        "store": True,
        "user": "me",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "max_tool_calls": 3,
    }
    said = body(ended(), **asked)
    assert {name: said[name] for name in asked} == asked
    Response.model_validate(said)
    json.dumps(said, allow_nan=False)


def test_ids_of_responses_and_jobs_lead_to_each_other_and_no_others_do() -> None:
    assert job_id_of(response_id_of("job_0_abc")) == "job_0_abc"
    assert job_id_of("job_0_abc") == job_id_of("") == ""
