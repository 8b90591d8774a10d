"""Tools for models whose templates know none: told in a system message, called in one JSON object.

What a conversation has of calls and of their results is told in plain messages, which any template takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from shared.jobs import ToolUse

Message = dict[str, Any]

RESPONSE = "response"
CALLS = "tool_calls"
RESULTS = "tool_results"

# Nothing in it that could be said as it stands: small models repeat an example word for word.
_TOOLS = "You can call these functions, given with the JSON Schema of their arguments:"
_CALLS = f'{{"{CALLS}": [...]}}, a list of calls, each with the "name" of a function and an object of "arguments"'
_MUST_CALL = f"Reply with one JSON object: {_CALLS}."
_MAY_CALL = f'Reply with one JSON object: either {_CALLS}, or {{"{RESPONSE}": ...}}, your answer as a string.'


def plain_messages(messages: Iterable[Message], use: ToolUse | None, *, takes_system: bool) -> list[Message]:
    """The same conversation without calls, and without roles that templates may not know; what the model may call, told
    in front of it."""
    plain: list[Message] = []
    for message in messages:
        _add(plain, _plain(message))
    if use is not None:
        _tell(plain, _told(use), takes_system=takes_system)
    return plain


def has_calls(messages: Iterable[Message]) -> bool:
    """Whether there is anything in them that is not plain."""
    return any(message["role"] == "tool" or message.get("tool_calls") for message in messages)


def _plain(message: Message) -> Message:
    content = message.get("content") or ""
    if message["role"] == "tool":
        name = message.get("name") or message.get("tool_name")
        result = {**({"name": name} if name else {}), "content": content}
        return {"role": "user", "content": _json({RESULTS: [result]})}
    if calls := message.get("tool_calls"):
        told = _json({CALLS: [_call(call) for call in calls]})
        rest = {key: value for key, value in message.items() if key not in ("tool_calls", "content")}
        return {**rest, "content": f"{content}\n{told}" if content else told}
    return message


def _call(call: Message) -> Message:
    function = call.get("function") or {}
    return {"name": function.get("name", ""), "arguments": function.get("arguments") or {}}


def _add(plain: list[Message], message: Message) -> None:
    """Two of a user in a row become one: results stand among what a user says, and many templates want turns."""
    if plain and message["role"] == "user" == plain[-1]["role"]:
        plain[-1] = {**plain[-1], "content": f"{plain[-1].get('content') or ''}\n{message.get('content') or ''}"}
    else:
        plain.append(message)


def _told(use: ToolUse) -> str:
    functions = [tool["function"] for tool in use.tools]
    tools = (
        {key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None}
        for function in functions
        if not use.name or function["name"] == use.name
    )
    return "\n".join([_TOOLS, *map(_json, tools), _MUST_CALL if use.must_call else _MAY_CALL])


def _tell(plain: list[Message], text: str, *, takes_system: bool) -> None:
    """In the conversation's own system message, or before what is said first where the template takes none."""
    role = "system" if takes_system else "user"
    if plain and plain[0]["role"] == role:
        content = plain[0].get("content") or ""
        texts = [content, text] if takes_system else [text, content]
        plain[0] = {**plain[0], "content": "\n\n".join(filter(None, texts))}
    else:
        plain.insert(0, {"role": role, "content": text})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
