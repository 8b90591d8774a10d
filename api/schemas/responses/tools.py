"""Tools of a response: functions that the model may call, or has to. Knows no template, and no way to write a call."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from api.reply import NAME_PATTERN, is_name
from api.schemas.constraints import schema_constraint
from api.schemas.strict import ClientFields, bad_field, by_hand
from api.schemas.tools import MAX_TOOLS, strict_names
from shared.errors import NotSupported
from shared.jobs import ToolUse

HOSTED = frozenset(
    (
        *("file_search", "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
        *("computer", "computer_use", "computer_use_preview", "code_interpreter", "image_generation", "mcp", "custom"),
        *("local_shell", "shell", "apply_patch", "tool_search", "namespace", "programmatic_tool_calling"),
    )
)
"""What OpenAI runs itself, or reads in another way than as a function."""
_CHOICES = ("none", "auto", "required")


class FunctionTool(TypedDict):
    type: Literal["function"]
    name: Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, Any] | None]
    strict: NotRequired[bool | None]


class ChosenFunction(TypedDict):
    type: Literal["function"]
    name: str


class AllowedFunctions(TypedDict):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[ChosenFunction]


ToolChoice = Literal["none", "auto", "required"] | ChosenFunction | AllowedFunctions


class ToolFields(ClientFields):
    tools: Annotated[Any, by_hand(Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)])] = []
    tool_choice: Annotated[Any, by_hand(ToolChoice)] = "auto"
    parallel_tool_calls: bool | None = None


def tool_use_of(typed: ToolFields) -> ToolUse | None:
    """What the model is told that it may call; None when it may not. Raises InvalidRequest, or NotSupported for tools
    that are no functions."""
    functions = _functions(typed.tools)
    choice = typed.tool_choice
    if isinstance(choice, dict):
        must_call, allowed = _choice(choice, functions)
    elif choice in _CHOICES:
        must_call, allowed = choice == "required", list(functions)
    else:
        raise bad_field("tool_choice", "must be 'none', 'auto', 'required' or an object")
    if must_call and not allowed:
        raise bad_field("tool_choice", "needs 'tools'")
    if choice == "none" or not allowed:
        return None
    return ToolUse(
        tools=tuple(functions[name] for name in allowed),
        must_call=must_call,
        name=choice["name"] if isinstance(choice, dict) and choice["type"] == "function" else "",
        strict=strict_names(tool for tool in typed.tools if tool["name"] in allowed),
        is_parallel=typed.parallel_tool_calls,
    )


def _functions(tools: Any) -> dict[str, dict[str, Any]]:
    """By name, in the form that a chat has."""
    if not isinstance(tools, list):
        raise bad_field("tools", "must be a list")
    if len(tools) > MAX_TOOLS:
        raise bad_field("tools", f"there are {len(tools)}, and at most {MAX_TOOLS} are taken")
    functions: dict[str, dict[str, Any]] = {}
    for place, tool in enumerate(tools):
        function = _function(f"tools[{place}]", tool)
        if function["name"] in functions:
            raise bad_field(f"tools[{place}].name", "is given twice")
        functions[function["name"]] = {"type": "function", "function": function}
    return functions


def _choice(choice: dict[str, Any], functions: dict[str, Any]) -> tuple[bool, list[str]]:
    """Whether there must be a call, and of which functions there may be one."""
    match choice:
        case {"type": "function", "name": str(name)}:
            _check_known("tool_choice.name", name, functions)
            return True, [name]
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(tools)}:
            return mode == "required", [_allowed(place, tool, functions) for place, tool in enumerate(tools)]
        case {"type": str(kind)} if kind in HOSTED:
            raise _no_function("tool_choice.type", kind)
    raise bad_field("tool_choice", "must be a function with its name, or allowed tools with their mode")


def _allowed(place: int, tool: Any, functions: dict[str, Any]) -> str:
    field = f"tool_choice.tools[{place}]"
    match tool:
        case {"type": "function", "name": str(name)}:
            _check_known(f"{field}.name", name, functions)
            return name
        case {"type": str(kind)} if kind in HOSTED:
            raise _no_function(f"{field}.type", kind)
    raise bad_field(field, "must be a function with its name")


def _check_known(field: str, name: str, functions: dict[str, Any]) -> None:
    if name not in functions:
        raise bad_field(field, "there is no such function among 'tools'")


def _function(field: str, tool: Any) -> dict[str, Any]:
    """What a template is told of one."""
    if not isinstance(tool, dict):
        raise bad_field(field, "must be an object")
    kind = tool.get("type")
    if isinstance(kind, str) and kind in HOSTED:
        raise _no_function(f"{field}.type", kind)
    if kind != "function":
        raise bad_field(f"{field}.type", "must be 'function'")
    name, description, parameters = tool.get("name"), tool.get("description") or "", tool.get("parameters") or {}
    if not isinstance(name, str) or not is_name(name):
        raise bad_field(f"{field}.name", "must be 1 to 128 letters, digits, or signs out of _ . : / -")
    if not isinstance(description, str):
        raise bad_field(f"{field}.description", "must be a string")
    if not isinstance(parameters, dict):
        raise bad_field(f"{field}.parameters", "must be an object")
    if not isinstance(tool.get("strict"), bool | None):
        raise bad_field(f"{field}.strict", "must be a boolean")
    if parameters:
        schema_constraint(parameters, f"{field}.parameters")
    return {"name": name, "description": description, "parameters": parameters}


def _no_function(field: str, kind: str) -> NotSupported:
    return NotSupported(f"Field '{field}': this server has no tool {kind!r}, only functions", param=field)
