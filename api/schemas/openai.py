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
from api.schemas.continuation import ContinuationFields, continuation_of
from api.schemas.generation import GenerationFields
from api.schemas.later import (
    ALWAYS,
    LATER,
    LIST,
    NEGATIVE,
    Later,
    refuse_later,
)
from api.schemas.messages import Messages, messages_of
from api.schemas.pictures import MEDIA_MARKER, Album, PromptPictures
from api.schemas.reasoning import ReasoningFormat, thinking_kwargs
from api.schemas.sampling import Natural
from api.schemas.strict import bad_field, by_hand, read
from api.schemas.telling import Telling
from api.schemas.tools import ToolFields, tool_use_of
from shared.errors import NotSupported
from shared.jobs import Chat, Completion, Infill

_CHAT_LATER: dict[str, Later] = LATER | {
    "modalities": Later("a list", lambda value: value == ["text"]),
    "audio": ALWAYS,
    "image_data": LIST,
    "system_prompt": ALWAYS,
    "web_search_options": ALWAYS,
    "reasoning_budget_tokens": NEGATIVE,
    "thinking_budget_tokens": NEGATIVE,
}


class ChatFields(ContinuationFields, ToolFields, GenerationFields):
    messages: Annotated[Any, by_hand(Messages)]
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None
    reasoning_format: ReasoningFormat = Field(ReasoningFormat.DEEPSEEK, strict=False)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @property
    def alternatives(self) -> int | None:
        """OpenAI's two fields count before llama.cpp's one."""
        native = super().alternatives
        if not self.logprobs:
            return native
        return self.top_logprobs if self.top_logprobs is not None else native or 0


MakesChatShape = Callable[[Origin, Chat, Wanted, Telling], Shape]
"""How the answer is to look: today's shape unless another dialect has its own."""


def chat(fields: dict[str, Any], shape: MakesChatShape = ChatShape) -> Ask:
    """The job of a chat body. Raises InvalidRequest or NotSupported."""
    typed = read(ChatFields, fields)
    if typed.top_logprobs is not None and not typed.logprobs:
        raise bad_field("top_logprobs", "needs 'logprobs' to be true")
    refuse_later(fields, _CHAT_LATER)
    _refuse_functions(fields)
    album = Album()
    continuation = continuation_of(typed, messages_of(typed.messages, album))
    constraint, tool_use = constraint_of(fields), tool_use_of(typed)
    if tool_use is not None and constraint is not None and constraint.field in ("grammar", "regex"):
        raise bad_field(constraint.field, "cannot be used together with 'tools'")
    request = Chat(
        messages=continuation.messages,
        add_generation_prompt=typed.add_generation_prompt and not continuation.is_asked,
        continues_last=continuation.is_asked,
        template_kwargs=thinking_kwargs(typed.chat_template_kwargs, typed.reasoning_effort),
        tool_use=tool_use,
        constraint=constraint,
        **typed.generation(),
    )
    told = continuation.told
    telling = Telling(typed.reasoning_format, told._replace(content=told.content.replace(album.mark, MEDIA_MARKER)))
    return Ask(
        request=request,
        shape=lambda origin: shape(origin, request, _wanted(typed), telling),
        model=typed.model,
        lane=typed.lane,
        is_stream=typed.stream,
        keep_alive_s=typed.keep_alive_s,
        album=album,
    )


def _refuse_functions(fields: dict[str, Any]) -> None:
    """OpenAI's first form of tools, whose answers have another shape."""
    for name, successor in (("functions", "tools"), ("function_call", "tool_choice")):
        if fields.get(name) not in (None, [], "none", "auto"):
            raise bad_field(name, f"is no longer taken: '{successor}' has its place")


def _legacy_logprobs(value: Any) -> Any:
    return None if value is False else value


class TextCompletionFields(PromptFields):
    suffix: str = ""
    """What comes behind the text: with it, the gap between prompt and suffix is filled."""
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
    typed = read(TextCompletionFields, fields)
    refuse_later(fields, LATER)
    pictures = PromptPictures(fields)
    request = _infill(typed, fields) if typed.suffix else completion_of(typed, fields, pictures)
    _check_best_of(typed)
    echoes = _echoes(request, pictures.album) if typed.echo else ()
    return Ask(
        request=request,
        shape=lambda origin: TextShape(origin, request, _wanted(typed), echoes),
        model=typed.model,
        lane=typed.lane,
        is_stream=typed.stream,
        keep_alive_s=typed.keep_alive_s,
        album=pictures.album,
    )


def _infill(typed: TextCompletionFields, fields: dict[str, Any]) -> Infill:
    """Whether the model can, its worker knows."""
    if not isinstance(typed.prompt, str):
        raise bad_field("suffix", "needs 'prompt' to be one text")
    for name in ("system_prompt", "image_data"):
        if fields.get(name):
            raise bad_field("suffix", f"cannot be used together with '{name}'")
    return Infill(prefix=typed.prompt, suffix=typed.suffix, constraint=constraint_of(fields), **typed.generation())


def _wanted(typed: GenerationFields) -> Wanted:
    return Wanted(
        has_usage=typed.stream_options.include_usage,
        has_progress=typed.return_progress,
        is_verbose=typed.verbose,
        service_tier=typed.tier,
    )


def _check_best_of(typed: TextCompletionFields) -> None:
    if typed.best_of is None or typed.best_of == typed.n_choices:
        return
    if typed.best_of < typed.n_choices:
        raise bad_field("best_of", "must not be less than 'n'")
    raise NotSupported("Field 'best_of': this build gives all choices that it makes", param="best_of")


def _echoes(request: Completion | Infill, album: Album) -> tuple[str, ...]:
    """What each prompt's text begins with."""
    if request.wants_logprobs:
        raise NotSupported("Field 'echo': this build has no probabilities of a prompt's tokens", param="echo")
    prompts = request.prompts if isinstance(request, Completion) else (request.prefix,)
    texts = tuple(prompt for prompt in prompts if isinstance(prompt, str))
    if album.pictures or len(texts) < len(prompts):
        raise NotSupported("Field 'echo': this build repeats prompts that are text only", param="echo")
    return texts
