"""OpenAI's chat and completions, with llama.cpp's additions: their fields. How they are answered is in `choices`.

Knows no template: messages are checked for shape here and rendered by the worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from api.schemas.ask import Ask, Origin, Shape
from api.schemas.choices import ChatShape, TextShape, Wanted
from api.schemas.completion import PromptFields, completion_of
from api.schemas.constraints import constraint_of
from api.schemas.generation import GenerationFields
from api.schemas.later import (
    ALWAYS,
    LATER,
    LIST,
    NEGATIVE,
    TEXT,
    Later,
    refuse_later,
)
from api.schemas.messages import Messages, Tool, ToolChoice, messages_of, tools_of
from api.schemas.pictures import Album, PromptPictures
from api.schemas.sampling import Natural
from api.schemas.strict import bad_field, by_hand, read
from shared.errors import NotSupported
from shared.jobs import Chat, Completion

_CHAT_LATER: dict[str, Later] = LATER | {
    "modalities": Later("a list", lambda value: value == ["text"]),
    "audio": ALWAYS,
    "image_data": LIST,
    "functions": LIST,
    "system_prompt": ALWAYS,
    "web_search_options": ALWAYS,
    "reasoning_budget_tokens": NEGATIVE,
    "thinking_budget_tokens": NEGATIVE,
}
_TEXT_LATER: dict[str, Later] = LATER | {"suffix": TEXT}


class ChatFields(GenerationFields):
    messages: Annotated[Any, by_hand(Messages)]
    tools: Annotated[Any, by_hand(list[Tool])] = None
    tool_choice: Annotated[Any, by_hand(ToolChoice)] = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @property
    def alternatives(self) -> int | None:
        """OpenAI's two fields count before llama.cpp's one."""
        native = super().alternatives
        if not self.logprobs:
            return native
        return self.top_logprobs if self.top_logprobs is not None else native or 0


MakesChatShape = Callable[[Origin, Chat, Wanted], Shape]
"""How the answer is to look: today's shape unless another dialect has its own."""


def chat(fields: dict[str, Any], shape: MakesChatShape = ChatShape) -> Ask:
    """The job of a chat body. Raises InvalidRequest or NotSupported."""
    typed = read(ChatFields, fields)
    album = Album()
    messages = messages_of(typed.messages, album)
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
    template_kwargs = dict(typed.chat_template_kwargs)
    if typed.reasoning_effort is not None:
        template_kwargs.setdefault("reasoning_effort", typed.reasoning_effort)
    if tools:
        template_kwargs["tools"] = tools
    request = Chat(
        messages=messages,
        add_generation_prompt=typed.add_generation_prompt,
        template_kwargs=template_kwargs,
        constraint=constraint_of(fields),
        **typed.generation(),
    )
    return Ask(
        request=request,
        shape=lambda origin: shape(origin, request, _wanted(typed)),
        model=typed.model,
        lane=typed.lane,
        is_stream=typed.stream,
        keep_alive_s=typed.keep_alive_s,
        album=album,
    )


def _legacy_logprobs(value: Any) -> Any:
    return None if value is False else value


class TextFields(PromptFields):
    logprobs: Annotated[Natural | None, BeforeValidator(_legacy_logprobs, Natural | Literal[False])] = None
    echo: bool = False
    best_of: int | None = Field(None, ge=1)

    @property
    def alternatives(self) -> int | None:
        """`logprobs` is another name for the same, asked second; 0 tells each token's own."""
        native = super().alternatives
        return self.logprobs if native is None else native


def completions(fields: dict[str, Any]) -> Ask:
    """The job of a `/v1/completions` body. Raises InvalidRequest or NotSupported."""
    typed = read(TextFields, fields)
    refuse_later(fields, _TEXT_LATER)
    pictures = PromptPictures(fields)
    request = completion_of(typed, fields, pictures)
    _check_best_of(typed)
    if typed.echo:
        _check_echo(request, pictures.album)
    return Ask(
        request=request,
        shape=lambda origin: TextShape(origin, request, _wanted(typed), has_echo=typed.echo),
        model=typed.model,
        lane=typed.lane,
        is_stream=typed.stream,
        keep_alive_s=typed.keep_alive_s,
        album=pictures.album,
    )


def _wanted(typed: GenerationFields) -> Wanted:
    return Wanted(
        has_usage=typed.stream_options.include_usage,
        has_progress=typed.return_progress,
        is_verbose=typed.verbose,
    )


def _check_best_of(typed: TextFields) -> None:
    if typed.best_of is None or typed.best_of == typed.n_choices:
        return
    if typed.best_of < typed.n_choices:
        raise bad_field("best_of", "must not be less than 'n'")
    raise NotSupported("Field 'best_of': this build gives all choices that it makes", param="best_of")


def _check_echo(request: Completion, album: Album) -> None:
    if request.wants_logprobs:
        raise NotSupported("Field 'echo': this build has no probabilities of a prompt's tokens", param="echo")
    if album.pictures or not all(isinstance(prompt, str) for prompt in request.prompts):
        raise NotSupported("Field 'echo': this build repeats prompts that are text only", param="echo")
