"""Parts of a message's content, typed as OpenAI types them. Knows no message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

from api.schemas.pictures import Address, Album, picture_of
from api.schemas.strict import bad_field
from shared.errors import NotSupported


class ImageAddress(TypedDict):
    url: Address


class ContentText(TypedDict):
    type: Literal["text"]
    text: str


class ContentImage(TypedDict):
    type: Literal["image_url", "input_image"]
    image_url: ImageAddress | Address


Part = ContentText | ContentImage

_PICTURES = {"image_url", "input_image"}
_OTHER_MEDIA = {"input_audio", "input_video", "audio_url", "video_url", "file"}


def text_of(name: str, part: Any) -> str:
    """The text of the part `name`. Raises InvalidRequest, or NotSupported for what is not text."""
    kind = _kind(part)
    if kind in _PICTURES or kind in _OTHER_MEDIA:
        raise NotSupported(f"Field '{name}': only text is taken here", param=name)
    if kind != "text" or not isinstance(text := part.get("text"), str):
        raise bad_field(name, "must be a part of type 'text' with a text")
    return text


def joined(name: str, parts: Sequence[Any], album: Album) -> str:
    """One text of all parts of the content `name`, with marks for pictures. A line break stands between two texts only,
    as in llama.cpp. Raises InvalidRequest, or NotSupported for sounds, films and files."""
    content = ""
    was_text = False
    for place, part in enumerate(parts):
        field = f"{name}[{place}]"
        if _kind(part) in _PICTURES:
            content += album.put(picture_of(field, part))
            was_text = False
        else:
            content += ("\n" if was_text else "") + text_of(field, part)
            was_text = True
    return content


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""
