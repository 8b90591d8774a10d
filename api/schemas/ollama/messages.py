"""ollama's messages and images, brought to the form that templates expect. Knows no template.

Images stand in a list of their own beside the text. They come before it, as ollama shows them to a model, or where the
text says `[img]`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from api.schemas.pictures import Album, Picture
from api.schemas.strict import bad_field
from api.schemas.tools import call_id

PLACE = "[img]"
"""The next image's, in a text that comes with images."""


class OllamaFunction(TypedDict):
    name: str
    arguments: NotRequired[dict[str, Any] | None]


class OllamaCall(TypedDict):
    function: OllamaFunction


class OllamaMessage(TypedDict):
    role: Annotated[str, Field(min_length=1)]
    content: NotRequired[str | None]
    thinking: NotRequired[str | None]
    images: NotRequired[list[str] | None]
    """Files in base64."""
    tool_calls: NotRequired[list[OllamaCall] | None]
    tool_name: NotRequired[str | None]
    tool_call_id: NotRequired[str | None]


def messages_of(value: Any, album: Album) -> tuple[dict[str, Any], ...]:
    """The messages of a chat, with marks for images, which go into the album. Raises InvalidRequest."""
    if not isinstance(value, list):
        raise bad_field("messages", "must be a list")
    return tuple(_answered(_message(f"messages[{place}]", message, album) for place, message in enumerate(value)))


def illustrated(text: str, images: Sequence[str], name: str, album: Album) -> str:
    """The text with marks for the images of the field `name`, which go into the album in the order of their marks."""
    n_placed = min(text.count(PLACE), len(images))
    for place in (*range(n_placed, len(images)), *range(n_placed)):
        album.put(Picture(f"{name}[{place}]", data=images[place]))
    return album.mark * (len(images) - n_placed) + text.replace(PLACE, album.mark, n_placed)


def _message(name: str, message: Any, album: Album) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise bad_field(name, "must be an object")
    role = _text(name, "role", message)
    if not role:
        raise bad_field(f"{name}.role", "must be a string")
    content = _text(name, "content", message)
    images = message.get("images") or []
    if not isinstance(images, list) or not all(isinstance(file, str) for file in images):
        raise bad_field(f"{name}.images", "must be a list of strings")
    calls = _calls(f"{name}.tool_calls", message.get("tool_calls") or [])
    more = {
        "reasoning_content": _text(name, "thinking", message),
        "tool_calls": calls,
        "name": _text(name, "tool_name", message),
        "tool_call_id": _text(name, "tool_call_id", message),
    }
    return {
        "role": role.lower(),
        "content": illustrated(content, images, f"{name}.images", album) or (None if calls else ""),
        **{key: value for key, value in more.items() if value},
    }


class _Unanswered:
    """Calls that no tool has answered yet, in their order."""

    def __init__(self, calls: Sequence[dict[str, Any]] = ()) -> None:
        self._ids = OrderedDict.fromkeys(call["id"] for call in calls)
        self._by_name: dict[str, deque[str]] = {}
        for call in calls:
            self._by_name.setdefault(call["function"]["name"], deque()).append(call["id"])

    def take(self, told: str | None, name: str | None) -> str | None:
        """The id of the call that is answered now: the one that is told, else the first of that name, else the first of
        all. A client can send a hundred thousand of them."""
        if told is not None:
            self._ids.pop(told, None)
            return told
        named = self._by_name.get(name or "", deque())
        while named:
            if (found := named.popleft()) in self._ids:
                del self._ids[found]
                return found
        return self._ids.popitem(last=False)[0] if self._ids else None


def _answered(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same with the id of its call in each answer of a tool: templates ask for it, and ollama's clients need not
    tell it."""
    unanswered = _Unanswered()
    for message in messages:
        if calls := message.get("tool_calls"):
            unanswered = _Unanswered(calls)
        answered = None
        if message["role"] == "tool":
            answered = unanswered.take(message.get("tool_call_id"), message.get("name"))
        yield message if answered is None else {**message, "tool_call_id": answered}


def _text(name: str, key: str, message: dict[str, Any]) -> str:
    text = message.get(key)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise bad_field(f"{name}.{key}", "must be a string")
    return text


def _calls(name: str, calls: Any) -> list[dict[str, Any]]:
    """With what OpenAI's have besides, which templates may ask for."""
    if not isinstance(calls, list):
        raise bad_field(name, "must be a list")
    return [_call(f"{name}[{place}]", call, place) for place, call in enumerate(calls)]


def _call(name: str, call: Any, place: int) -> dict[str, Any]:
    match call:
        case {"function": {"name": str(function), **more}}:
            arguments = more.get("arguments") or {}
            if not isinstance(arguments, dict):
                raise bad_field(f"{name}.function.arguments", "must be an object")
            told_id = _text(name, "id", call) or call_id(name, 0, place)
            return {"id": told_id, "type": "function", "function": {"name": function, "arguments": arguments}}
    raise bad_field(name, "must be an object with a function that has a name")
