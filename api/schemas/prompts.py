"""The many forms of a prompt: text, token ids, both mixed, or a list of these. Knows no vocabulary.

A list is one prompt when it holds a token id, else each of its elements is a prompt, as in llama.cpp.
"""

from __future__ import annotations

from typing import Any

from api.schemas.strict import bad_field
from shared.errors import NotSupported
from shared.jobs import Prompt

MAX_PROMPTS = 2048
"""Elements of one array, as OpenAI has it; more is a bulk file."""

MAX_TOKEN_ID = 2**31 - 1


def prompts_of(name: str, value: Any) -> tuple[Prompt, ...]:
    """All prompts in the field `name`, at least one. Raises InvalidRequest."""
    if not isinstance(value, list):
        return (prompt_of(name, value),)
    if not value:
        raise bad_field(name, "must not be empty")
    if any(_is_token(item) for item in value):
        return (_pieces(name, value),)
    if len(value) > MAX_PROMPTS:
        raise bad_field(name, f"has {len(value)} elements, but {MAX_PROMPTS} are allowed")
    return tuple(prompt_of(f"{name}[{place}]", item) for place, item in enumerate(value))


def inputs_of(name: str, value: Any) -> tuple[Prompt, ...]:
    """The same for embeddings, where an empty input has no meaning."""
    inputs = prompts_of(name, value)
    if not all(inputs):
        raise bad_field(name, "must not hold an empty input")
    return inputs


def prompt_of(name: str, value: Any) -> Prompt:
    """The one prompt in the field `name`. Raises InvalidRequest."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return _pieces(name, value)
    if isinstance(value, dict) and isinstance(text := value.get("prompt_string"), str):
        if value.get("multimodal_data"):
            raise NotSupported(f"Field '{name}.multimodal_data': this build takes text only", param=name)
        return text
    raise bad_field(name, "must be a string or a list of token ids and strings")


def _pieces(name: str, items: list[Any]) -> tuple[int | str, ...]:
    for place, item in enumerate(items):
        if isinstance(item, str):
            continue
        if not _is_token(item):
            raise bad_field(f"{name}[{place}]", "must be a token id or a string")
        if not 0 <= item <= MAX_TOKEN_ID:
            raise bad_field(f"{name}[{place}]", f"{item} is not a token id")
    return tuple(items)


def _is_token(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)
