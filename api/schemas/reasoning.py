"""Whether a model reasons, and where its reasoning is told: beside its answer, in it, or in both. Knows no marks.

The names are llama.cpp's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from api.schemas.strict import bad_field


class ReasoningFormat(StrEnum):
    NONE = "none"  # in the content, as the model wrote it
    AUTO = "auto"  # beside it
    DEEPSEEK = "deepseek"  # the same
    DEEPSEEK_LEGACY = "deepseek-legacy"  # in both; of a stream in the content alone

    def is_beside(self, *, is_stream: bool) -> bool:
        """Whether it has a place of its own."""
        return self is not ReasoningFormat.NONE and not (is_stream and self is ReasoningFormat.DEEPSEEK_LEGACY)

    def is_within(self, *, is_stream: bool) -> bool:
        """Whether the content has it."""
        return self is ReasoningFormat.DEEPSEEK_LEGACY or not self.is_beside(is_stream=is_stream)


def thinking_kwargs(template_kwargs: dict[str, Any], effort: str | None) -> dict[str, Any]:
    """What a template is told, besides what the client tells it. The effort `none` is llama.cpp's word for no thinking
    at all. Raises InvalidRequest."""
    told = dict(template_kwargs)
    if not isinstance(told.get("enable_thinking"), bool | None):
        raise bad_field("chat_template_kwargs.enable_thinking", "must be a boolean")
    if effort == "none":
        told.pop("reasoning_effort", None)
        told["enable_thinking"] = False
    elif effort:
        told["reasoning_effort"] = effort
    return told
