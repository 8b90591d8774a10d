"""What makes a response: OpenAI's fields, with llama.cpp's own beside them, and the chat that they become.

Knows no answer; how items are read is in `inputs`, and tools in `tools`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from api.schemas.constraints import ANY_OBJECT, constraint_of, schema_constraint
from api.schemas.generation import GenerationFields
from api.schemas.metadata import Metadata
from api.schemas.pictures import Album
from api.schemas.reasoning import ReasoningFormat, thinking_kwargs
from api.schemas.responses.inputs import InputItem, messages_of
from api.schemas.responses.tools import ToolFields, tool_use_of
from api.schemas.sampling import Limit
from api.schemas.strict import ClientFields, bad_field, by_hand, read
from api.schemas.webhook import WebhookFields
from shared.jobs import Chat, Constraint, Truncation

WITH_LOGPROBS = "message.output_text.logprobs"

_ELSEWHERE = {
    "previous_response_id": "this server does not continue responses: send all items in 'input'",
    "conversation": "this server keeps no conversations: send all items in 'input'",
    "prompt": "this server keeps no prompts: send their text in 'input'",
}
"""Fields that stand for what a server would have to remember."""


class FormatFields(ClientFields):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class AnswerFields(ClientFields):
    format: FormatFields = FormatFields()
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningFields(ClientFields):
    effort: str | None = None
    summary: str | None = None


class ResponseFields(GenerationFields, ToolFields):
    input: Annotated[Any, by_hand(str | list[InputItem])]
    instructions: str | None = None
    background: bool = False
    store: bool = True
    max_output_tokens: Limit | None = None
    max_tool_calls: int | None = Field(None, ge=1)
    metadata: Metadata = {}
    text: AnswerFields = AnswerFields()
    reasoning: ReasoningFields = ReasoningFields()
    truncation: Literal["auto", "disabled"] = "disabled"
    include: list[str] = []
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    webhook: WebhookFields | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_format: ReasoningFormat = Field(ReasoningFormat.AUTO, strict=False)

    @property
    def alternatives(self) -> int | None:
        """OpenAI's two fields count before llama.cpp's one."""
        if self.top_logprobs is None and WITH_LOGPROBS not in self.include:
            return super().alternatives
        return self.top_logprobs or 0

    @property
    def splits_reasoning(self) -> bool:
        return self.reasoning_format is not ReasoningFormat.NONE

    def limit(self) -> int:
        return super().limit() if self.max_output_tokens is None else self.max_output_tokens


@dataclass(frozen=True, slots=True)
class Asked:
    """A response as it was asked for."""

    typed: ResponseFields
    request: Chat
    album: Album


def asked_of(fields: dict[str, Any]) -> Asked:
    """Raises InvalidRequest or NotSupported."""
    for name, reason in _ELSEWHERE.items():
        if fields.get(name) is not None:
            raise bad_field(name, reason)
    typed = read(ResponseFields, fields)
    if typed.n_choices != 1:
        raise bad_field("n" if typed.n_cmpl is None else "n_cmpl", "a response is one answer")
    if typed.background and not typed.store:
        raise bad_field("background", "needs 'store': nobody waits for what nobody keeps")
    constraint, tool_use = _constraint(typed.text.format, fields), tool_use_of(typed)
    if tool_use is not None and constraint is not None and constraint.field in ("grammar", "regex"):
        raise bad_field(constraint.field, "cannot be used together with 'tools'")
    album = Album()
    request = Chat(
        messages=messages_of(typed.instructions, typed.input, album),
        tool_use=tool_use,
        constraint=constraint,
        template_kwargs=thinking_kwargs(typed.chat_template_kwargs, typed.reasoning.effort),
        **typed.generation() | _truncation(typed),
    )
    return Asked(typed, request, album)


def _constraint(format: FormatFields, fields: dict[str, Any]) -> Constraint | None:
    other = constraint_of(fields)
    if format.type == "text":
        return other
    if other is not None:
        raise bad_field("text.format", f"cannot be used together with '{other.name}'")
    if format.type == "json_object":
        return schema_constraint(ANY_OBJECT, "text.format")
    if format.schema_ is None:
        raise bad_field("text.format.schema", "is needed")
    return schema_constraint(format.schema_, "text.format.schema")


def _truncation(typed: ResponseFields) -> dict[str, Any]:
    return {"truncate": Truncation.MESSAGES} if typed.truncation == "auto" else {}
