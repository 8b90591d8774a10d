"""What responses look like, as types, each with the keys that a client may rely on."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from api.openapi.answers import Timings, TokenProbability
from api.problems import ParamErrorDetail

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenProbability]


class OutputMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class Reasoning(TypedDict):
    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


class OutputCall(TypedDict):
    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    """What its output is sent back with."""
    name: str
    arguments: str
    """JSON."""


class ResponseError(TypedDict):
    code: Literal["server_error", "invalid_prompt"]
    message: str
    param: str | None
    type: str
    """As in an error that a request is answered with."""


class InputDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(TypedDict):
    reasoning_tokens: int
    """An estimate, by the share of the text."""


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Response(TypedDict):
    """Beside what was asked for. Times are Unix seconds."""

    id: str
    object: Literal["response"]
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    created_at: int
    completed_at: int | None
    model: str
    output: list[OutputMessage | Reasoning | OutputCall]
    error: ResponseError | None
    incomplete_details: dict[str, str] | None
    usage: ResponseUsage | None
    background: bool
    metadata: dict[str, str]
    timings: NotRequired[Timings]


class ResponseEvent(TypedDict):
    """`event:` is its type. Numbers run from 0 on without a gap. The last one is `response.completed`,
    `response.incomplete` or `response.failed` (also when it was cancelled), and has the response; or `error`, when the
    stream cannot go on."""

    type: str
    sequence_number: int
    response: NotRequired[Response]
    item: NotRequired[OutputMessage | Reasoning | OutputCall]
    item_id: NotRequired[str]
    output_index: NotRequired[int]
    content_index: NotRequired[int]
    delta: NotRequired[str]
    text: NotRequired[str]
    arguments: NotRequired[str]
    error: NotRequired[ParamErrorDetail]


class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]
