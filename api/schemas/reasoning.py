"""Where a model's reasoning is told: beside its answer, in it, or in both. Knows no marks.

The names are llama.cpp's `reasoning_format`.
"""

from __future__ import annotations

from enum import StrEnum


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
