"""Chat messages: checked for shape, and brought to the one form that templates expect.

Content becomes a string, or None for an assistant that only calls tools. Knows no template.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from api.schemas.parts import Part, joined
from api.schemas.pictures import Album
from api.schemas.strict import bad_field

Content = str | list[Part]


class FunctionCall(TypedDict):
    name: str
    arguments: NotRequired[str | dict[str, Any] | None]


class ToolCall(TypedDict):
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionCall


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: NotRequired[Content | None]
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCall] | None]


class Message(TypedDict):
    role: Annotated[str, Field(min_length=1)]
    content: Content
    tool_calls: NotRequired[list[ToolCall] | None]
    tool_call_id: NotRequired[str | None]
    """Of a tool's result: which call it answers."""


Messages = Annotated[list[AssistantMessage | Message], Field(min_length=1)]


def messages_of(value: Any, album: Album) -> tuple[dict[str, Any], ...]:
    """The messages of a chat, with marks for pictures, which go into the album. Raises InvalidRequest, or NotSupported
    for what is neither text nor image."""
    if not isinstance(value, list):
        raise bad_field("messages", "must be a list")
    if not value:
        raise bad_field("messages", "must not be empty")
    return tuple(_message(f"messages[{place}]", message, album) for place, message in enumerate(value))


def _message(name: str, message: Any, album: Album) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise bad_field(name, "must be an object")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise bad_field(f"{name}.role", "must be a string")
    if role == "developer":
        role = "system"  # who few templates know under his newer name, as in llama.cpp
    given = {key: value for key, value in message.items() if value is not None}
    for key in ("reasoning_content", "tool_call_id", "name"):
        if not isinstance(given.get(key, ""), str):
            raise bad_field(f"{name}.{key}", "must be a string")
    if (calls := given.get("tool_calls")) is not None:
        given["tool_calls"] = _calls(f"{name}.tool_calls", calls)
    return given | {"role": role, "content": _content(f"{name}.content", role, given.get("content"), album)}


def _content(name: str, role: str, content: Any, album: Album) -> str | None:
    if isinstance(content, str):
        return content
    if content is None:
        if role != "assistant":
            raise bad_field(name, "is needed")
        return None
    if not isinstance(content, list):
        raise bad_field(name, "must be a string or a list of parts")
    return joined(name, content, album)


def _calls(name: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise bad_field(name, "must be a list")
    return [_call(f"{name}[{place}]", call) for place, call in enumerate(calls)]


def _call(name: str, call: Any) -> dict[str, Any]:
    """What a model once wrote need not be JSON: its arguments stay what they are. Without any they are an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_field(name, "must be an object with a function that has a name")
    if not isinstance(call.get("id", ""), str | None):
        raise bad_field(f"{name}.id", "must be a string")
    arguments = function.get("arguments")
    if not isinstance(arguments, str | dict | None):
        raise bad_field(f"{name}.function.arguments", "must be a string or an object")
    return {**call, "type": "function", "function": {**function, "arguments": arguments or "{}"}}
