"""What a client offers to be called, looked through before anything is made of it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from shared.errors import InvalidRequest
from shared.jobs import ToolUse
from worker.grammar.reply import Function

MAX_FUNCTIONS = 128
"""OpenAI's."""
MAX_LENGTH = 512 * 1024
"""Of all tools together, as JSON, in characters."""

_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
"""Nothing that could be taken for an end of the name, in whatever way it is written."""


def functions_of(use: ToolUse) -> tuple[Function, ...]:
    """InvalidRequest, which names the function, for what no model could call."""
    if len(use.tools) > MAX_FUNCTIONS:
        raise InvalidRequest(
            f"Field 'tools': {len(use.tools)} tools, and at most {MAX_FUNCTIONS} are taken", param="tools"
        )
    if (length := len(json.dumps(use.tools, ensure_ascii=False))) > MAX_LENGTH:
        raise InvalidRequest(
            f"Field 'tools': it has {length} characters, and at most {MAX_LENGTH} are taken", param="tools"
        )
    functions = tuple(_function(tool, position, use.strict) for position, tool in enumerate(use.tools))
    names = [function.name for function in functions]
    if use.name and use.name not in names:
        raise InvalidRequest(f"Field 'tool_choice': no tool has the name '{use.name}'", param="tool_choice")
    return functions


def _function(tool: dict[str, Any], position: int, strict: Collection[str]) -> Function:
    field = f"tools[{position}].function"
    function = tool.get("function")
    if not isinstance(function, dict):
        raise _refusal(field, "it must be an object")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _refusal(f"{field}.name", "it must be of at most 128 letters, digits and the signs _ - . : /")
    # By its name: of a client's tools these are perhaps those alone that it allows, and counted otherwise.
    field = f"tools.{name}.parameters"
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise _refusal(field, "it must be a JSON Schema, which is an object")
    kind = parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise _refusal(field, "arguments are an object: its type must be that")
    return Function(name, json.dumps({**parameters, "type": "object"}), field, name in strict)


def _refusal(field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Field '{field}': {reason}", param=field)
