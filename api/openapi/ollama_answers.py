"""What ollama's paths answer, as types, each with the keys that a client may rely on."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from api.openapi.answers import TokenProbability


class Piece(TypedDict):
    """What follows `done` comes with the last piece. Durations are nanoseconds; that of loading is the wait in the
    queue."""

    model: str
    created_at: str
    done: bool
    logprobs: NotRequired[list[TokenProbability]]
    done_reason: NotRequired[Literal["stop", "length", "load", "unload"]]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    """Of the whole prompt, with what was cached."""
    prompt_eval_cached_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]


class Generated(Piece):
    response: str
    thinking: NotRequired[str]


class MadeCall(TypedDict):
    id: str
    function: dict[str, Any]
    """`index`, `name` and `arguments`, an object."""


class Reply(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[MadeCall]]


class Chatted(Piece):
    message: Reply


class Embedded(TypedDict):
    model: str
    embeddings: list[list[float]]
    prompt_eval_count: NotRequired[int]


class EmbeddedPrompt(TypedDict):
    embedding: list[float]


class Details(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class Listed(TypedDict):
    name: str
    model: str
    size: int
    digest: str
    details: Details


class Tag(Listed):
    modified_at: str


class Tags(TypedDict):
    models: list[Tag]


class Running(Listed):
    expires_at: str
    size_vram: int
    context_length: int


class RunningList(TypedDict):
    models: list[Running]


class Shown(TypedDict):
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    """What stands in the head of its file, without long lists."""
    capabilities: list[str]
    modified_at: str


class Version(TypedDict):
    version: str
