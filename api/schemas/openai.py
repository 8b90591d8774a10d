"""OpenAI's chat, completions and embeddings, with llama.cpp's additions: their fields and their answers.

Knows no template: messages are checked for shape here and rendered by the worker. The judge is the `openai` SDK.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from api import sse
from api.problems import body_of
from api.schemas.answers import (
    FINGERPRINT,
    answers_of,
    embedding_usage_json,
    finish_reason,
    timings_json,
    usage_json,
    vectors_of,
)
from api.schemas.ask import Ask, Heard, Origin
from api.schemas.constraints import constraint_of
from api.schemas.generation import (
    ALWAYS,
    FLAG,
    LATER,
    LIST,
    ONE,
    TEXT,
    GenerationFields,
    Later,
    refuse_later,
)
from api.schemas.messages import messages_of, tools_of
from api.schemas.prompts import inputs_of, prompts_of
from api.schemas.strict import ClientFields, bad_field, read
from shared.errors import NotSupported
from shared.events import Accepted, Answer, Finished, Tokens, Vector
from shared.jobs import Chat, Completion, Embedding, Lane

_CHAT_LATER: dict[str, Later] = LATER | {
    "logprobs": FLAG,
    "modalities": Later("a list", lambda value: value == ["text"]),
    "audio": ALWAYS,
    "functions": LIST,
    "web_search_options": ALWAYS,
    "reasoning_budget_tokens": Later("a number", lambda value: value < 0),
    "thinking_budget_tokens": Later("a number", lambda value: value < 0),
}
_TEXT_LATER: dict[str, Later] = LATER | {
    "logprobs": Later("any", lambda value: value is False),
    "best_of": ONE,
    "echo": FLAG,
    "suffix": TEXT,
}


class ChatFields(GenerationFields):
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)


def chat(fields: dict[str, Any]) -> Ask:
    """The job of a chat body. Raises InvalidRequest or NotSupported."""
    typed = read(ChatFields, fields)
    messages = messages_of(fields.get("messages"))
    tools = tools_of(fields)
    if typed.top_logprobs is not None and not typed.logprobs:
        raise bad_field("top_logprobs", "needs 'logprobs' to be true")
    if typed.continue_final_message:
        if typed.add_generation_prompt and "add_generation_prompt" in typed.model_fields_set:
            raise bad_field("continue_final_message", "excludes 'add_generation_prompt'")
        raise NotSupported(
            "Field 'continue_final_message': this build does not support it", param="continue_final_message"
        )
    refuse_later(fields, _CHAT_LATER)
    constraint = constraint_of(fields)
    template_kwargs = dict(typed.chat_template_kwargs)
    if typed.reasoning_effort is not None:
        template_kwargs.setdefault("reasoning_effort", typed.reasoning_effort)
    if tools:
        template_kwargs["tools"] = tools
    request = Chat(
        messages=messages,
        add_generation_prompt=typed.add_generation_prompt,
        template_kwargs=template_kwargs,
        n_predict=typed.limit(),
        stop=tuple(typed.stop),
        sampling=typed.sampling(),
        cache_prompt=typed.cache_prompt,
        constraint=constraint,
    )
    return Ask(
        requests=(request,),
        shape=lambda origin: ChatShape(origin, has_usage=typed.stream_options.include_usage),
        model=typed.model,
        lane=typed.lane,
        is_stream=typed.stream,
    )


def completions(fields: dict[str, Any]) -> Ask:
    """The jobs of a `/v1/completions` body, one for each prompt. Raises InvalidRequest or NotSupported."""
    typed = read(GenerationFields, fields)
    if fields.get("prompt") is None:
        raise bad_field("prompt", "is needed")
    prompts = prompts_of("prompt", fields["prompt"])
    refuse_later(fields, _TEXT_LATER)
    constraint = constraint_of(fields)
    sampling, limit, stops = typed.sampling(), typed.limit(), tuple(typed.stop)
    return Ask(
        requests=tuple(
            Completion(
                prompts=(prompt,),
                n_predict=limit,
                stop=stops,
                sampling=sampling,
                cache_prompt=typed.cache_prompt,
                constraint=constraint,
            )
            for prompt in prompts
        ),
        shape=lambda origin: TextShape(origin, n_choices=len(prompts), has_usage=typed.stream_options.include_usage),
        model=typed.model,
        lane=typed.lane,
        is_stream=typed.stream,
    )


class EmbeddingFields(ClientFields):
    model: str | None = None
    priority: Lane | None = Field(None, strict=False)
    service_tier: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Any = None
    embd_normalize: Literal[-1, 2] = 2


def embeddings(fields: dict[str, Any]) -> Ask:
    """The one job of an embeddings body. Raises InvalidRequest."""
    typed = read(EmbeddingFields, fields)
    if fields.get("input") is None:
        raise bad_field("input", "is needed")
    if typed.dimensions is not None:
        raise bad_field("dimensions", "the model's vectors cannot be shortened")
    request = Embedding(inputs=inputs_of("input", fields["input"]), normalize=typed.embd_normalize == 2)
    return Ask(
        requests=(request,),
        shape=lambda origin: EmbeddingShape(typed.model or origin.model, is_base64=typed.encoding_format == "base64"),
        model=typed.model,
        lane=typed.priority or (Lane.BULK if typed.service_tier == "flex" else None),
    )


class _Shape:
    """What all shapes here have in common."""

    def failed(self, error: Exception) -> bytes:
        return sse.data(body_of(error, with_param=True))


class ChatShape(_Shape):
    """`chat.completion` and its chunks: the role first, then text, then why it ended, then usage when asked."""

    def __init__(self, origin: Origin, *, has_usage: bool) -> None:
        self._head = _head(origin, "chatcmpl", "chat.completion")
        self._chunk_head = _head(origin, "chatcmpl", "chat.completion.chunk")
        self._closing = _Closing(self._chunk_head, n_choices=1, has_usage=has_usage)
        self._has_opened = False

    def say(self, heard: Heard) -> bytes:
        match heard.event:
            case Accepted():
                return self._opening()
            case Tokens(text=text) if text:
                return self._opening() + self._chunk({"content": text})
            case Finished() as finished:
                (answer,) = answers_of([finished])
                reason = finish_reason(answer.stop_type)
                choice = {"finish_reason": reason, "index": 0, "delta": {}}
                return self._opening() + self._closing.push(answer, choice)
        return b""

    def end(self) -> bytes:
        return self._closing.flush()

    def body(self, endings: Sequence[Finished]) -> Any:
        answers = answers_of(endings)
        return {
            "choices": [
                {
                    "finish_reason": finish_reason(answer.stop_type),
                    "index": index,
                    "message": {"role": "assistant", "content": answer.text},
                    "logprobs": None,
                }
                for index, answer in enumerate(answers)
            ],
            **self._head,
            "usage": usage_json(answers),
            "timings": timings_json(answers[0].timings),
        }

    def _opening(self) -> bytes:
        if self._has_opened:
            return b""
        self._has_opened = True
        return self._chunk({"role": "assistant", "content": None})

    def _chunk(self, delta: dict[str, Any]) -> bytes:
        choice = {"finish_reason": None, "index": 0, "delta": delta}
        return sse.data({"choices": [choice], **self._chunk_head})


class TextShape(_Shape):
    """`text_completion`, whole or in pieces; choices are in the order of the prompts."""

    def __init__(self, origin: Origin, *, n_choices: int, has_usage: bool) -> None:
        self._head = _head(origin, "cmpl", "text_completion")
        self._closing = _Closing(self._head, n_choices=n_choices, has_usage=has_usage)

    def say(self, heard: Heard) -> bytes:
        match heard.event:
            case Tokens(text=text) if text:
                choice = {"text": text, "index": heard.place, "logprobs": None, "finish_reason": None}
                return sse.data({"choices": [choice], **self._head})
            case Finished() as finished:
                (answer,) = answers_of([finished])
                return self._closing.push(answer, _text_choice(heard.place, "", answer))
        return b""

    def end(self) -> bytes:
        return self._closing.flush()

    def body(self, endings: Sequence[Finished]) -> Any:
        answers = answers_of(endings)
        return {
            "choices": [_text_choice(index, answer.text, answer) for index, answer in enumerate(answers)],
            **self._head,
            "usage": usage_json(answers),
            "timings": timings_json(answers[0].timings),
        }


class EmbeddingShape(_Shape):
    """A list of vectors; `model` is the name the client used."""

    def __init__(self, model: str, *, is_base64: bool) -> None:
        self._model = model
        self._is_base64 = is_base64

    def say(self, heard: Heard) -> bytes:
        raise AssertionError("embeddings are never streamed")

    def end(self) -> bytes:
        raise AssertionError("embeddings are never streamed")

    def body(self, endings: Sequence[Finished]) -> Any:
        vectors = vectors_of(endings[0])
        return {
            "model": self._model,
            "object": "list",
            "usage": embedding_usage_json(vectors),
            "data": [self._item(vector) for vector in vectors],
        }

    def _item(self, vector: Vector) -> dict[str, Any]:
        item: dict[str, Any] = {
            "embedding": vector.f32 if self._is_base64 else vector.values().tolist(),
            "index": vector.index,
            "object": "embedding",
        }
        if self._is_base64:
            item["encoding_format"] = "base64"
        return item


class _Closing:
    """The end of a stream: a chunk for each choice that ends, usage when asked, `[DONE]`; the last has timings."""

    def __init__(self, head: dict[str, Any], *, n_choices: int, has_usage: bool) -> None:
        self._head = head
        self._n_choices = n_choices
        self._has_usage = has_usage
        self._answers: list[Answer] = []

    def push(self, answer: Answer, choice: dict[str, Any]) -> bytes:
        self._answers.append(answer)
        chunk = {"choices": [choice], **self._head}
        if not self._has_usage and len(self._answers) == self._n_choices:
            chunk["timings"] = timings_json(answer.timings)
        return sse.data(chunk)

    def flush(self) -> bytes:
        if not self._has_usage:
            return sse.DONE
        last = {
            "choices": [],
            **self._head,
            "usage": usage_json(self._answers),
            "timings": timings_json(self._answers[-1].timings),
        }
        return sse.data(last) + sse.DONE


def _head(origin: Origin, prefix: str, kind: str) -> dict[str, Any]:
    return {
        "created": origin.created,
        "id": f"{prefix}-{origin.job_id.removeprefix('job_').replace('_', '')}",
        "model": origin.model,
        "system_fingerprint": FINGERPRINT,
        "object": kind,
    }


def _text_choice(index: int, text: str, answer: Answer) -> dict[str, Any]:
    return {
        "text": text,
        "index": index,
        "logprobs": None,
        "finish_reason": finish_reason(answer.stop_type),
    }
