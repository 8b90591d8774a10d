"""Whether a chat goes on with its last message, which is the assistant's own, and what of that is told again.

llama.cpp's rules: such a message is gone on with unless the client says no; then the answer begins with it. Who asks
for it in so many words gets what is new, and all of it with `echo`. Knows no template.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from api.reply import Said
from api.schemas.strict import ClientFields, bad_field


class ContinuationFields(ClientFields):
    add_generation_prompt: bool = True
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = None
    echo: bool = False
    """Whether the answer begins with the message that it goes on with."""


class Continuation(NamedTuple):
    """What becomes of the messages."""

    messages: tuple[dict[str, Any], ...]
    is_asked: bool = False
    told: Said = Said()
    """What the answer begins with."""


def continuation_of(typed: ContinuationFields, messages: Sequence[dict[str, Any]]) -> Continuation:
    """Raises InvalidRequest when the messages do not allow what is asked."""
    asked, last = typed.continue_final_message, messages[-1]
    is_own = last["role"] == "assistant"
    if asked and typed.add_generation_prompt and "add_generation_prompt" in typed.model_fields_set:
        raise bad_field("continue_final_message", "excludes 'add_generation_prompt'")
    if asked and not is_own:
        raise bad_field("continue_final_message", "needs the last message to be the assistant's")
    if asked is False or not is_own:
        return Continuation(tuple(messages))
    if last.get("tool_calls"):
        raise bad_field(f"messages[{len(messages) - 1}]", "has calls, and cannot be gone on with")
    if not asked and len(messages) > 1 and messages[-2]["role"] == "assistant":
        raise bad_field("messages", "end with two of the assistant's, and only one can be gone on with")
    if asked == "reasoning_content":
        last = {**last, "content": None}
    elif asked == "content" and last["content"] is None:
        last = {**last, "content": ""}
    told = Said(reasoning=last.get("reasoning_content") or "", content=last["content"] or "")
    is_told = typed.echo if asked else True
    return Continuation((*messages[:-1], last), is_asked=True, told=told if is_told else Said())
