"""Chat messages and tools."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.messages import messages_of, tools_of
from api.schemas.openai import chat
from api.schemas.pictures import Album
from shared.errors import InvalidRequest, NotSupported
from shared.jobs import Chat

TEXT = {"type": "text", "text": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hi",
        {},
        [1],
        [{}],
        [{"content": "x"}],
        [{"role": 5, "content": "x"}],
        [{"role": "", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": {}}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": [{"type": "poem", "text": "x"}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": ["text"], "text": "x"}]}],
        [{"role": "user", "content": [{"text": "x"}]}],
        [{"role": "assistant", "tool_calls": {}}],
        [{"role": "assistant", "tool_calls": [{}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
    ],
    ids=str,
)
def test_a_message_of_the_wrong_shape_is_refused_by_name(messages: Any) -> None:
    with pytest.raises(InvalidRequest, match="Field 'messages"):
        messages_of(messages, Album())


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"role": "user", "content": ""}, ""),
        ({"role": "user", "content": []}, ""),
        ({"role": "user", "content": [TEXT]}, "Hi"),
        ({"role": "user", "content": [TEXT, {"type": "text", "text": "there"}]}, "Hi\nthere"),
        ({"role": "assistant", "content": None}, None),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{bad"}}]}, None),
        ({"role": "tool", "content": "4", "tool_call_id": "a"}, "4"),
        ({"role": "foo", "content": "x"}, "x"),
    ],
    ids=str,
)
def test_content_becomes_one_text(message: dict[str, Any], content: str | None) -> None:
    (read,) = messages_of([message], Album())
    assert read["content"] == content


def test_any_order_of_roles_is_the_templates_business() -> None:
    turns = [{"role": role, "content": "x"} for role in ("user", "user", "system", "assistant")]
    assert len(messages_of(turns, Album())) == 4


@pytest.mark.parametrize("kind", ["input_audio", "input_video", "video_url", "file"])
def test_what_is_neither_text_nor_image_is_not_supported(kind: str) -> None:
    with pytest.raises(NotSupported, match="only text"):
        messages_of([{"role": "user", "content": [{"type": kind, kind: {}}]}], Album())


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_call_cannot_be_forced(choice: Any) -> None:
    with pytest.raises(NotSupported):
        tools_of({"tools": [TOOL], "tool_choice": choice})


@pytest.mark.parametrize("choice", ["foo", 5, []])
def test_a_choice_that_is_none_is_refused(choice: Any) -> None:
    with pytest.raises(InvalidRequest):
        tools_of({"tools": [TOOL], "tool_choice": choice})


def test_the_template_is_told_of_tools_that_may_be_called() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
    request = chat(body).request
    assert isinstance(request, Chat) and request.template_kwargs == {"tools": [TOOL]}
    request = chat(body | {"tool_choice": "none"}).request
    assert isinstance(request, Chat) and request.template_kwargs == {}
