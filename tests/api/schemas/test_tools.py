"""Tools of a chat: what may be called, what must be, and what is refused before anything is queued."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.openai import chat
from api.schemas.tools import call_id
from shared.errors import InvalidRequest, NotSupported
from shared.jobs import Chat, ToolUse


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def told(name: str) -> dict[str, Any]:
    return tool(name, description="", parameters={})


def named(name: str) -> dict[str, Any]:
    return tool(name)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


BOTH = (told("f"), told("g"))


def tool_use(**fields: Any) -> ToolUse | None:
    request = chat({"messages": [{"role": "user", "content": "hi"}], **fields}).request
    assert isinstance(request, Chat) and "tools" not in request.template_kwargs
    return request.tool_use


@pytest.mark.parametrize(
    ("choice", "use"),
    [
        (None, ToolUse(tools=BOTH)),
        ("auto", ToolUse(tools=BOTH)),
        ("none", None),
        ("required", ToolUse(tools=BOTH, must_call=True)),
        (named("g"), ToolUse(tools=(told("g"),), must_call=True, name="g")),
        (allowed("auto", "g"), ToolUse(tools=(told("g"),))),
        (allowed("required", "g", "f"), ToolUse(tools=BOTH, must_call=True)),
    ],
    ids=str,
)
def test_a_choice_says_what_may_and_what_must_be_called(choice: Any, use: ToolUse | None) -> None:
    assert tool_use(tools=[tool("f"), tool("g")], tool_choice=choice) == use


def test_several_calls_are_allowed_unless_they_are_not() -> None:
    use = tool_use(tools=[tool("f")], parallel_tool_calls=False)
    assert use is not None and not use.is_parallel


def test_a_template_is_told_of_what_llamacpp_would_tell_it() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    use = tool_use(tools=[tool("f", description="Looks.", parameters=schema, strict=True)])
    assert use is not None
    assert use.tools == (tool("f", description="Looks.", parameters=schema),)
    assert use.strict == ("f",), "for whoever sees to it that the model keeps to it"


@pytest.mark.parametrize("none", [{}, {"tools": None}, {"tools": []}, {"tools": [], "tool_choice": "auto"}], ids=str)
def test_without_tools_nothing_may_be_called(none: Any) -> None:
    assert tool_use(**none) is None


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tools": "f"}, "tools"),
        ({"tools": [tool("f")] * 129}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": 5, "function": {"name": "f"}}]}, "tools[0]"),
        ({"tools": [tool("f"), tool("")]}, "tools[1].function.name"),
        ({"tools": [tool('f"')]}, "tools[0].function.name"),
        ({"tools": [tool("f" * 129)]}, "tools[0].function.name"),
        ({"tools": [tool("f", description=5)]}, "tools[0].function.description"),
        ({"tools": [tool("f", parameters="{}")]}, "tools[0].function.parameters"),
        ({"tools": [tool("f"), tool("g", parameters={"type": "poem"})]}, "tools[1].function.parameters"),
        ({"tools": [tool("f", strict="yes")]}, "tools[0].function.strict"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": "foo"}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": 5}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": []}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": named("g")}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": allowed("auto", "g")}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": allowed("auto")}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": allowed("poem", "f")}, "tool_choice"),
        ({"tools": [tool("f")], "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"tools": [tool("f")], "grammar": 'root ::= "a"'}, "grammar"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
    ],
    ids=str,
)
def test_what_is_wrong_with_tools_is_said_with_the_fields_name(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tool_use(**fields)
    assert refused.value.param == name


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
        {"tools": [tool("f")], "tool_choice": {"type": "custom"}},
    ],
    ids=str,
)
def test_a_tool_that_is_no_function_is_not_supported(fields: dict[str, Any]) -> None:
    with pytest.raises(NotSupported):
        tool_use(**fields)


def test_ids_of_calls_are_a_function_of_the_job() -> None:
    ids = [call_id("job_0_ab", index, place) for index in range(3) for place in range(3)]
    assert ids == [call_id("job_0_ab", index, place) for index in range(3) for place in range(3)]
    assert len(set(ids)) == 9
    assert all(len(id) == 9 and id.isalnum() for id in ids), "Mistral's templates refuse others"
