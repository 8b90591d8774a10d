"""Chat messages and tools: checked for shape, and brought to the one form that templates expect.

Content becomes a string, or None for an assistant that only calls tools. Knows no template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from api.schemas.parts import Part, joined
from api.schemas.pictures import Album
from api.schemas.strict import bad_field
from shared.errors import NotSupported

Content = str | list[Part]


class FunctionCall(TypedDict):
    name: str
    arguments: NotRequired[str | dict[str, Any]]


class ToolCall(TypedDict):
    function: FunctionCall


class Message(TypedDict):
    role: Annotated[str, Field(min_length=1)]
    content: NotRequired[Content | None]
    """Needed but of an assistant."""
    tool_calls: NotRequired[list[ToolCall] | None]


Messages = Annotated[list[Message], Field(min_length=1)]


class Function(TypedDict):
    name: str


class Tool(TypedDict):
    function: Function


ToolChoice = Literal["none", "auto", "required"] | dict[str, Any]


def messages_of(value: Any, album: Album) -> tuple[dict[str, Any], ...]:
    """The messages of a chat, with marks for pictures, which go into the album. Raises InvalidRequest, or NotSupported
    for what is neither text nor image."""
    if not isinstance(value, list):
        raise bad_field("messages", "must be a list")
    if not value:
        raise bad_field("messages", "must not be empty")
    return tuple(_message(f"messages[{place}]", message, album) for place, message in enumerate(value))


def tools_of(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools that the template is to tell of. Raises InvalidRequest, or NotSupported for a forced call."""
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    if tools is not None and not isinstance(tools, list):
        raise bad_field("tools", "must be a list")
    for place, tool in enumerate(tools or []):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_field(f"tools[{place}]", "must be an object with a function that has a name")
    if not isinstance(choice, str | dict | None):
        raise bad_field("tool_choice", "must be a string or an object")
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        raise bad_field("tool_choice", "must be 'none', 'auto', 'required' or an object")
    if choice not in (None, "none", "auto"):
        if not tools:
            raise bad_field("tool_choice", "needs 'tools'")
        raise NotSupported("Field 'tool_choice': this build cannot force a call", param="tool_choice")
    return [] if choice == "none" or not tools else tools


def _message(name: str, message: Any, album: Album) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise bad_field(name, "must be an object")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise bad_field(f"{name}.role", "must be a string")
    given = {key: value for key, value in message.items() if value is not None}
    calls = given.get("tool_calls")
    if calls is not None:
        _check_calls(f"{name}.tool_calls", calls)
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


def _check_calls(name: str, calls: Any) -> None:
    if not isinstance(calls, list):
        raise bad_field(name, "must be a list")
    for place, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_field(f"{name}[{place}]", "must be an object with a function that has a name")
        if not isinstance(function.get("arguments", ""), str | dict):
            raise bad_field(f"{name}[{place}].function.arguments", "must be a string or an object")
