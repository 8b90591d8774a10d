"""Chat messages."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.messages import messages_of
from api.schemas.pictures import Album
from shared.errors import InvalidRequest, NotSupported

TEXT = {"type": "text", "text": "Hi"}


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
        [{"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": "f"}}]}],
        [{"role": "assistant", "content": "x", "reasoning_content": 5}],
        [{"role": "tool", "content": "x", "tool_call_id": 5}],
        [{"role": "tool", "tool_call_id": "a"}],
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


def test_a_developer_is_who_sets_up_the_system() -> None:
    (read,) = messages_of([{"role": "developer", "content": "x"}], Album())
    assert read == {"role": "system", "content": "x"}


def test_any_order_of_roles_is_the_templates_business() -> None:
    turns = [{"role": role, "content": "x"} for role in ("user", "user", "system", "assistant")]
    assert len(messages_of(turns, Album())) == 4


@pytest.mark.parametrize("kind", ["input_audio", "input_video", "video_url", "file"])
def test_what_is_neither_text_nor_image_is_not_supported(kind: str) -> None:
    with pytest.raises(NotSupported, match="only text"):
        messages_of([{"role": "user", "content": [{"type": kind, kind: {}}]}], Album())


@pytest.mark.parametrize(("arguments", "read"), [("", "{}"), (None, "{}"), ("{bad", "{bad"), ({"a": 1}, {"a": 1})])
def test_what_a_model_once_called_with_stays_what_it_is(arguments: Any, read: Any) -> None:
    call = {"id": "c1", "function": {"name": "f", "arguments": arguments}}
    (message,) = messages_of([{"role": "assistant", "tool_calls": [call]}], Album())
    told = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": read}}
    assert message == {"role": "assistant", "content": None, "tool_calls": [told]}
