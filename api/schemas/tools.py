"""Functions that a chat's model may call, in OpenAI's words: what a request says of them, and the calls of an answer.

Knows no template: what the model is told of them, and how it calls, is its worker's business.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Iterable
from hashlib import blake2b
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from api.reply import NAME_PATTERN, Call, is_name
from api.schemas.constraints import schema_constraint
from api.schemas.strict import ClientFields, bad_field, by_hand
from shared.errors import NotSupported
from shared.jobs import ToolUse

MAX_TOOLS = 128
"""OpenAI's."""


class Function(TypedDict):
    name: Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, Any] | None]
    """A JSON schema of its arguments."""
    strict: NotRequired[bool | None]
    """Whether they must satisfy all of it, and not only what a grammar can keep."""


class Tool(TypedDict):
    type: NotRequired[Literal["function"]]
    function: Function


class NamedFunction(TypedDict):
    name: str


class NamedTool(TypedDict):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(TypedDict):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedToolChoice(TypedDict):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedToolChoice


class ToolFields(ClientFields):
    tools: Annotated[Any, by_hand(Annotated[list[Tool], Field(max_length=MAX_TOOLS)])] = None
    tool_choice: Annotated[Any, by_hand(ToolChoice)] = None
    parallel_tool_calls: bool | None = None
    """Whether one answer may call several times; by default, if the model's template writes several calls."""


def tool_use_of(typed: ToolFields) -> ToolUse | None:
    """None when nothing may be called. Raises InvalidRequest, or NotSupported for tools that are no functions."""
    tools = tools_of(typed.tools)
    match typed.tool_choice:
        case None | "auto":
            return _use(tools, typed) if tools else None
        case "none":
            return None
        case "required":
            return _use(tools, typed, must_call=True)
        case {"type": "function", "function": {"name": str(name)}}:
            return _use(_named(tools, [name]), typed, must_call=True, name=name)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(allowed)}}:
            return _use(_named(tools, map(_name_of, allowed)), typed, must_call=mode == "required")
        case {"type": "custom"}:
            raise NotSupported("Field 'tool_choice': this build calls functions only", param="tool_choice")
    raise bad_field("tool_choice", "must be 'none', 'auto', 'required', or an object that names functions")


def tools_of(value: Any) -> tuple[dict[str, Any], ...]:
    """What a template is told of: functions with a name, a description and a schema, and nothing else. Raises
    InvalidRequest, or NotSupported for tools that are no functions."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise bad_field("tools", "must be a list")
    if len(value) > MAX_TOOLS:
        raise bad_field("tools", f"there are {len(value)}, and at most {MAX_TOOLS} are taken")
    return tuple(_tool(f"tools[{place}]", tool) for place, tool in enumerate(value))


def _tool(field: str, tool: Any) -> dict[str, Any]:
    kind = tool.get("type", "function") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise NotSupported(f"Field '{field}': this build knows tools of type 'function' only", param=field)
    function = tool.get("function") if isinstance(tool, dict) and kind in ("function", None) else None
    if not isinstance(function, dict) or not isinstance(name := function.get("name"), str):
        raise bad_field(field, "must be an object with a function that has a name")
    if not is_name(name):
        raise bad_field(f"{field}.function.name", "must be 1 to 128 letters, digits, or signs out of _ . : / -")
    description, parameters = function.get("description") or "", function.get("parameters")
    if not isinstance(description, str):
        raise bad_field(f"{field}.function.description", "must be a string")
    if not isinstance(parameters, dict | None):
        raise bad_field(f"{field}.function.parameters", "must be an object")
    if not isinstance(function.get("strict"), bool | None):
        raise bad_field(f"{field}.function.strict", "must be a boolean")
    if parameters:
        schema_constraint(parameters, f"{field}.function.parameters")
    # As llama.cpp gives it to templates, most of which write down whatever they get.
    told = {"name": name, "description": description, "parameters": parameters or {}}
    return {"type": "function", "function": told}


def _use(tools: tuple[dict[str, Any], ...], typed: ToolFields, *, must_call: bool = False, name: str = "") -> ToolUse:
    if not tools:
        raise bad_field("tool_choice", "needs 'tools'")
    return ToolUse(
        tools=tools,
        must_call=must_call,
        name=name,
        strict=strict_names(tool["function"] for tool in typed.tools),
        is_parallel=typed.parallel_tool_calls,
    )


def strict_names(functions: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Of those that a client wants kept to in all that their schemas say."""
    return tuple(function["name"] for function in functions if function.get("strict"))


def _named(tools: tuple[dict[str, Any], ...], names: Iterable[str]) -> tuple[dict[str, Any], ...]:
    """Those of these names, in their own order."""
    wanted = set(names)
    if unknown := wanted - {tool["function"]["name"] for tool in tools}:
        raise bad_field("tool_choice", f"there is no tool {min(unknown)!r:.150}")
    return tuple(tool for tool in tools if tool["function"]["name"] in wanted)


def _name_of(allowed: Any) -> str:
    match allowed:
        case {"function": {"name": str(name)}}:
            return name
    raise bad_field("tool_choice", "each of its tools must be an object with a function that has a name")


def calls_json(job_id: str, index: int, calls: Iterable[Call]) -> list[dict[str, Any]]:
    """The calls of choice `index`."""
    return [
        {
            "id": call_id(job_id, index, place),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for place, call in enumerate(calls)
    ]


def call_id(job_id: str, index: int, place: int) -> str:
    """The same each time a job is read. Nine letters and digits: templates of Mistral refuse a history with others."""
    digest = blake2b(f"{job_id}/{index}/{place}".encode(), digest_size=6).digest()
    return b32encode(digest).decode()[:9].lower()
