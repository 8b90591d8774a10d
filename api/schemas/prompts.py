"""The many forms of a prompt: text, token ids, both mixed, or a list of these. Knows no vocabulary.

A list is one prompt when it holds a token id, else each of its elements is a prompt, as in llama.cpp.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from api.schemas.parts import ContentText, text_of
from api.schemas.pictures import PromptPictures
from api.schemas.strict import bad_field
from shared.errors import NotSupported
from shared.jobs import Prompt

MAX_PROMPTS = 2048
"""Elements of one array, as OpenAI has it; more is a bulk file."""

MAX_TOKEN_ID = 2**31 - 1

TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Pieces = list[TokenId | str]
"""One prompt of token ids and texts."""


class SpokenPrompt(TypedDict):
    """A prompt that brings its images, in base64: one for each `<__media__>` in it."""

    prompt_string: str
    multimodal_data: NotRequired[list[str] | None]


OnePrompt = str | Pieces | SpokenPrompt
Prompts = OnePrompt | Annotated[list[OnePrompt], Field(min_length=1, max_length=MAX_PROMPTS)]
"""What `prompts_of` takes. A list with a token id in it is one prompt."""


class InputParts(TypedDict):
    content: list[ContentText]


Input = str | Pieces | SpokenPrompt | InputParts
Inputs = Input | Annotated[list[Input], Field(min_length=1, max_length=MAX_PROMPTS)]
"""What `inputs_of` takes."""


def prompts_of(name: str, value: Any, pictures: PromptPictures | None = None) -> tuple[Prompt, ...]:
    """All prompts in the field `name`, at least one. Raises InvalidRequest."""
    if not isinstance(value, list):
        return (prompt_of(name, value, pictures),)
    if not value:
        raise bad_field(name, "must not be empty")
    if any(_is_token(item) for item in value):
        return (_pieces(name, value),)
    if len(value) > MAX_PROMPTS:
        raise bad_field(name, f"has {len(value)} elements, but {MAX_PROMPTS} are allowed")
    return tuple(prompt_of(f"{name}[{place}]", item, pictures) for place, item in enumerate(value))


def inputs_of(name: str, value: Any) -> tuple[Prompt, ...]:
    """The same for embeddings, where an empty input has no meaning, and where parts of a message's content, as in a
    chat, are another form of one. Raises NotSupported for parts that are not text."""
    if isinstance(value, list):
        spoken = [
            _spoken(f"{name}[{place}]", item) if isinstance(item, dict) else item for place, item in enumerate(value)
        ]
    else:
        spoken = _spoken(name, value)
    inputs = prompts_of(name, spoken)
    if not all(inputs):
        raise bad_field(name, "must not hold an empty input")
    return inputs


def _spoken(name: str, item: Any) -> Any:
    """The text of an object with content; anything else as it is."""
    if not isinstance(item, dict) or "content" not in item:
        return item
    parts = item["content"]
    if not isinstance(parts, list):
        raise bad_field(f"{name}.content", "must be a list of parts")
    return "".join(text_of(f"{name}.content[{place}]", part) for place, part in enumerate(parts))


def prompt_of(name: str, value: Any, pictures: PromptPictures | None = None) -> Prompt:
    """The one prompt in the field `name`; images are taken where there are `pictures` to put them in. Raises
    InvalidRequest, or NotSupported for images elsewhere."""
    if isinstance(value, list):
        return _pieces(name, value)
    text, files = value, None
    if isinstance(value, dict):
        text, files = value.get("prompt_string"), value.get("multimodal_data")
    if not isinstance(text, str):
        raise bad_field(name, "must be a string or a list of token ids and strings")
    if pictures is not None:
        return pictures.tagged(name, text) if files is None else pictures.marked(name, text, files)
    if files is not None and not isinstance(files, list):
        raise bad_field(f"{name}.multimodal_data", "must be a list of strings")
    if files:
        raise NotSupported(f"Field '{name}.multimodal_data': images are not taken here", param=name)
    return text


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
