"""llama.cpp's paths that ask for the model's words and not for its thoughts: tokenize, detokenize, apply-template.

The API has no model, so they are jobs too: quick ones, which need no slot.
"""

from __future__ import annotations

from typing import Annotated, Any

from api.schemas import openai
from api.schemas.ask import Ask
from api.schemas.pictures import MEDIA_MARKER
from api.schemas.prompts import OnePrompt, TokenId, prompt_of
from api.schemas.strict import ClientFields, bad_field, by_hand, read
from api.schemas.whole import WholeShape
from shared.events import Finished, Text, TokenIds
from shared.jobs import ApplyTemplate, Chat, Detokenize, Tokenize


class TokenizeFields(ClientFields):
    model: str | None = None
    content: Annotated[Any, by_hand(OnePrompt)] = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeFields(ClientFields):
    model: str | None = None
    tokens: list[TokenId]


def tokenize(fields: dict[str, Any]) -> Ask:
    """The job of a `/tokenize` body; no content is no tokens. Raises InvalidRequest."""
    typed = read(TokenizeFields, fields)
    content = prompt_of("content", typed.content) if typed.content is not None else ""
    request = Tokenize(content=content, add_special=typed.add_special, parse_special=typed.parse_special)
    listed = _pieces if typed.with_pieces else _ids
    return Ask(request, lambda _: WholeShape(lambda ending: {"tokens": listed(_part(ending))}), model=typed.model)


def detokenize(fields: dict[str, Any]) -> Ask:
    """The job of a `/detokenize` body. Raises InvalidRequest."""
    typed = read(DetokenizeFields, fields)
    request = Detokenize(tokens=tuple(typed.tokens))
    return Ask(request, lambda _: WholeShape(lambda ending: {"content": _part(ending).text}), model=typed.model)


def apply_template(fields: dict[str, Any]) -> Ask:
    """The job of a chat body that is rendered and not run; images become llama.cpp's markers. Raises InvalidRequest or
    NotSupported."""
    if fields.get("stream"):
        raise bad_field("stream", "a rendered prompt is not streamed")
    asked = openai.chat(fields)
    assert isinstance(asked.request, Chat)
    album = asked.album
    return Ask(
        request=ApplyTemplate(chat=asked.request),
        shape=lambda _: WholeShape(lambda ending: {"prompt": _part(ending).text.replace(album.mark, MEDIA_MARKER)}),
        model=asked.model,
        lane=asked.lane,
        album=album,
    )


def _part(ending: Finished) -> Any:
    """The one thing that was asked for."""
    (part,) = ending.parts
    assert isinstance(part, TokenIds | Text)
    return part


def _ids(part: TokenIds) -> list[int]:
    return list(part.ids)


def _pieces(part: TokenIds) -> list[dict[str, Any]]:
    """A piece that is no text of its own, half a character, is told by its bytes."""
    return [{"id": token, "piece": _piece(raw)} for token, raw in zip(part.ids, part.pieces_bytes(), strict=True)]


def _piece(raw: bytes) -> str | list[int]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
