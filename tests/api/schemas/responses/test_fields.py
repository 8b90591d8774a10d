"""What makes a response: fields and items that become a chat, and every wrong one by its name."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.responses.fields import asked_of
from shared.errors import InvalidRequest, NotSupported
from shared.jobs import Chat, Lane, ToolUse, Truncation


def chat(input: Any = "Hi", **more: Any) -> Chat:
    return asked_of({"input": input, **more}).request


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "2"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "It is 2.", "annotations": []}],
}
CALLED = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("Hi", [user("Hi")]),
        ("", [user("")]),
        ([user("Hi")], [user("Hi")]),
        ([{"type": "message", **user([{"type": "input_text", "text": "Hi"}])}], [user("Hi")]),
        ([user([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}])], [user("a\nb")]),
        ([user([])], [user("")]),
        ([{"role": "developer", "content": "Be brief."}], [{"role": "system", "content": "Be brief."}]),
        ([SAID], [{"role": "assistant", "content": "It is 2."}]),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
            [{"role": "assistant", "content": "No."}],
        ),
        (
            [THOUGHT, SAID, CALL, CALL | {"call_id": "c2"}],
            [
                {
                    "role": "assistant",
                    "reasoning_content": "Hm.",
                    "content": "It is 2.",
                    "tool_calls": [CALLED, CALLED | {"id": "c2"}],
                }
            ],
        ),
        (
            [CALL, OUTPUT, THOUGHT, SAID],
            [
                {"role": "assistant", "content": None, "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
                {"role": "assistant", "content": "It is 2.", "reasoning_content": "Hm."},
            ],
        ),
        (
            [CALL | {"arguments": ""}],
            [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [CALLED | {"function": {"name": "add", "arguments": "{}"}}],
                }
            ],
        ),
        ([SAID, SAID], [{"role": "assistant", "content": "It is 2."}] * 2),
        (
            [CALL, SAID],
            [
                {"role": "assistant", "content": None, "tool_calls": [CALLED]},
                {"role": "assistant", "content": "It is 2."},
            ],
        ),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "In short."}]}],
            [{"role": "assistant", "content": None, "reasoning_content": "In short."}],
        ),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "x"}, user("Hi")], [user("Hi")]),
        (
            [CALL, OUTPUT | {"output": [{"type": "input_text", "text": "2"}]}],
            [
                {"role": "assistant", "content": None, "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
            ],
        ),
    ],
)
def test_items_become_messages_and_a_turn_becomes_one(items: Any, messages: list[dict[str, Any]]) -> None:
    assert list(chat(items).messages) == messages


def test_instructions_come_before_everything_else() -> None:
    assert chat(instructions="Be brief.").messages[0] == {"role": "system", "content": "Be brief."}


def test_a_picture_leaves_a_mark_where_it_stands() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:image/png;base64,eA=="}]
    asked = asked_of({"input": [user(parts)]})
    assert asked.request.messages[0]["content"] == f"a{asked.album.mark}"
    assert [(picture.name, picture.data) for picture in asked.album.pictures] == [
        ("input[0].content[1].image_url", "eA==")
    ]


PART = {"type": "input_text", "text": "Hi"}
FORMAT = {"type": "json_schema", "name": "x"}
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": {}}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": ["Hi"]}, "input[0]"),
        ({"input": [user("Hi"), {}]}, "input[1].type"),
        ({"input": [{"type": []}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": "message", "content": "Hi"}]}, "input[0].role"),
        ({"input": [{"role": "tool", "content": "Hi"}]}, "input[0].role"),
        ({"input": [{"role": [], "content": "Hi"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [user(5)]}, "input[0].content"),
        ({"input": [user({})]}, "input[0].content"),
        ({"input": [user(["Hi"])]}, "input[0].content[0]"),
        ({"input": [user([PART, {"type": "foo", "text": "Hi"}])]}, "input[0].content[1].type"),
        ({"input": [user([{"type": {}}])]}, "input[0].content[0].type"),
        ({"input": [user([{"type": "input_text"}])]}, "input[0].content[0].text"),
        ({"input": [user([{"type": "input_text", "text": 5}])]}, "input[0].content[0].text"),
        ({"input": [user([{"type": "input_image"}])]}, "input[0].content[0].image_url"),
        ({"input": [user([{"type": "input_image", "image_url": "x"}])]}, "input[0].content[0].image_url"),
        ({"input": [CALL | {"arguments": {}}]}, "input[0].arguments"),
        ({"input": [CALL | {"name": None}]}, "input[0].name"),
        ({"input": [CALL | {"call_id": 5}]}, "input[0].call_id"),
        ({"input": [OUTPUT | {"output": None}]}, "input[0].output"),
        ({"input": [OUTPUT | {"call_id": None}]}, "input[0].call_id"),
        ({"input": [{"type": "reasoning", "content": "Hm."}]}, "input[0].content"),
        ({"input": [{"type": "reasoning", "content": ["Hm."]}]}, "input[0].content[0]"),
        ({"input": [{"type": "reasoning", "summary": [{}]}]}, "input[0].summary[0].text"),
        ({"instructions": 5}, "instructions"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"max_output_tokens": "many"}, "max_output_tokens"),
        ({"max_output_tokens": -2}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"background": "yes"}, "background"),
        ({"background": True, "store": False}, "background"),
        ({"n": 2}, "n"),
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"truncation": "middle"}, "truncation"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": "all"}, "include"),
        ({"reasoning": "hard"}, "reasoning"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": FORMAT}}, "text.format.schema"),
        ({"text": {"format": FORMAT | {"schema": {"type": "thing"}}}}, "text.format.schema"),
        ({"text": {"format": FORMAT | {"schema": {}}}, "grammar": "root ::= 'a'"}, "text.format"),
        ({"tools": {}}, "tools"),
        ({"tools": ["add"]}, "tools[0]"),
        ({"tools": [{"name": "add"}]}, "tools[0].type"),
        ({"tools": [{"type": [], "name": "add"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL | {"parameters": "none"}]}, "tools[0].parameters"),
        ({"tools": [TOOL | {"description": 5}]}, "tools[0].description"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [TOOL | {"name": str(n)} for n in range(129)]}, "tools"),
        ({"tools": [TOOL | {"parameters": {"type": "x"}}], "tool_choice": "required"}, "tools[0].parameters"),
        ({"tools": [TOOL], "grammar": "root ::= 'a'"}, "grammar"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
        ({"reasoning_format": "loud"}, "reasoning_format"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": 5}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": []}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked_of(fields if "input" in fields or not fields else {"input": "Hi", **fields})
    assert caught.value.param == field
    assert caught.value.message.startswith(f"Field '{field}': ")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"input": [user([{"type": "input_file", "file_id": "file_1"}])]}, "input[0].content[0]"),
        ({"input": [user([{"type": "input_image", "file_id": "file_1"}])]}, "input[0].content[0].file_id"),
    ],
)
def test_what_only_others_can_do_is_refused_as_such(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(NotSupported) as caught:
        asked_of({"input": "Hi", **fields})
    assert caught.value.param == field


OTHER = {"type": "function", "name": "sub"}
AS_CHAT = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
OTHER_AS_CHAT = {"type": "function", "function": {"name": "sub", "description": "", "parameters": {}}}
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [OTHER]}


@pytest.mark.parametrize(
    ("choice", "use"),
    [
        (None, ToolUse(tools=(AS_CHAT, OTHER_AS_CHAT), strict=("add",))),
        ("auto", ToolUse(tools=(AS_CHAT, OTHER_AS_CHAT), strict=("add",))),
        ("none", None),
        ("required", ToolUse(tools=(AS_CHAT, OTHER_AS_CHAT), strict=("add",), must_call=True)),
        ({"type": "function", "name": "sub"}, ToolUse(tools=(OTHER_AS_CHAT,), must_call=True, name="sub")),
        (ALLOWED, ToolUse(tools=(OTHER_AS_CHAT,), must_call=True)),
        (ALLOWED | {"mode": "auto", "tools": []}, None),
    ],
)
def test_a_choice_says_what_may_be_called_and_whether_it_must(choice: Any, use: ToolUse | None) -> None:
    assert chat(tools=[TOOL, OTHER], tool_choice=choice).tool_use == use


def test_no_tools_are_none() -> None:
    assert chat(tools=[], tool_choice="none", parallel_tool_calls=False).tool_use is None


def test_the_other_fields_become_a_chats() -> None:
    request = chat(
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        seed=9,
        stop=["x"],
        truncation="auto",
        top_logprobs=2,
        reasoning={"effort": "low"},
        text={"format": {"type": "json_object"}},
    )
    assert (request.n_predict, request.stop, request.truncate) == (7, ("x",), Truncation.MESSAGES)
    assert (request.sampling.temperature, request.sampling.top_p) == (0.5, 0.25)
    assert (request.sampling.top_k, request.sampling.seed) == (3, 9)
    assert (request.has_logprobs, request.n_probs) == (True, 2)
    assert request.template_kwargs == {"reasoning_effort": "low"}
    assert request.constraint is not None and request.constraint.field == "text.format"


def test_no_effort_is_no_thinking() -> None:
    assert chat(reasoning={"effort": "none"}).template_kwargs == {"enable_thinking": False}


def test_probabilities_without_alternatives_are_asked_for_by_what_to_include() -> None:
    request = chat(include=["message.output_text.logprobs", "reasoning.encrypted_content"])
    assert (request.has_logprobs, request.n_probs) == (True, 0)
    assert not chat().has_logprobs


def test_flex_is_bulk_and_unknown_fields_are_let_through() -> None:
    asked = asked_of({"input": "Hi", "service_tier": "flex", "moderation": {"model": "x"}, "what": [1]})
    assert asked.typed.lane is Lane.BULK
