"""ollama's messages: roles in any case, images beside the text, calls with objects for arguments."""

from __future__ import annotations

import time
from typing import Any

import pytest

from api.schemas.ollama.messages import illustrated, messages_of
from api.schemas.pictures import Album
from api.schemas.tools import call_id
from shared.errors import InvalidRequest


def read(*messages: Any) -> tuple[dict[str, Any], ...]:
    return messages_of(list(messages), Album())


def test_a_message_is_what_templates_expect() -> None:
    assert read({"role": "USER", "content": "Hi", "images": [], "odd": 1}) == ({"role": "user", "content": "Hi"},)


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "critic"])
def test_a_message_without_a_text_has_an_empty_one(role: str, content: dict[str, Any]) -> None:
    assert read({"role": role, **content}) == ({"role": role, "content": ""},)


def test_thinking_and_the_answers_of_tools_go_to_the_template() -> None:
    assert read(
        {"role": "assistant", "content": "Yes", "thinking": "Hm"},
        {"role": "tool", "content": "4", "tool_name": "add", "tool_call_id": "call_7"},
    ) == (
        {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"},
        {"role": "tool", "content": "4", "name": "add", "tool_call_id": "call_7"},
    )


def test_a_call_has_what_openais_has() -> None:
    (message,) = read(
        {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]},
    )
    assert message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": call_id("messages[0].tool_calls[0]", 0, 0),
                "type": "function",
                "function": {"name": "add", "arguments": {"a": 1}},
            }
        ],
    }


@pytest.mark.parametrize("arguments", [{}, {"arguments": None}, {"arguments": {}}])
def test_a_call_may_have_no_arguments(arguments: dict[str, Any]) -> None:
    (message,) = read({"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "now", **arguments}}]})
    assert message["tool_calls"] == [{"id": "x", "type": "function", "function": {"name": "now", "arguments": {}}}]


def called(*names: str, **ids: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": ids.get(name), "function": {"name": name}} for name in names]}


def answered(*names: str | None, **more: str) -> list[dict[str, Any]]:
    return [{"role": "tool", "content": "x", "tool_name": name, **more} for name in names]


@pytest.mark.parametrize(
    ("answers", "ids"),
    [
        (answered("a", "b"), "12"),
        (answered("b", "a"), "21"),
        (answered(None, None), "12"),
        (answered("b", None), "21"),
        (answered("other", "a"), "12"),
        ([*answered(None, tool_call_id="1"), *answered(None)], "12"),
        (answered("a", "a", "a"), "12-"),
        (answered("a", tool_call_id="9"), "9"),
    ],
)
def test_an_answer_of_a_tool_has_the_id_of_the_call_that_it_is_for(answers: list[dict[str, Any]], ids: str) -> None:
    _, *told = read(called("a", "b", a="1", b="2"), *answers)
    assert "".join(message.get("tool_call_id", "-") for message in told) == ids


def test_very_many_calls_and_answers_take_no_longer_than_it_takes_to_read_them() -> None:
    """The event loop reads them, and has others to serve."""
    names = [f"f{number}" for number in range(20_000)]
    begun = time.perf_counter()
    _, *told = read(called(*names), *answered(*reversed(names)))
    assert time.perf_counter() - begun < 15, "a second is what it takes"
    assert len({message["tool_call_id"] for message in told}) == len(names)


def test_calls_without_an_id_have_one_each() -> None:
    first, _, second = read(called("a", "b"), {"role": "user", "content": "again"}, called("a"))
    assert len({call["id"] for message in (first, second) for call in message["tool_calls"]}) == 3


def test_an_answer_that_no_tool_was_called_for_has_no_id() -> None:
    assert all("tool_call_id" not in message for message in read(*answered("a"), called("a", a="1")))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("Hi", "messages[0]"),
        ([], "messages[0]"),
        ({}, "messages[0].role"),
        ({"role": ""}, "messages[0].role"),
        ({"role": 5}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text", "text": "Hi"}]}, "messages[0].content"),
        ({"role": "user", "images": "abc"}, "messages[0].images"),
        ({"role": "user", "images": [5]}, "messages[0].images"),
        ({"role": "assistant", "thinking": {}}, "messages[0].thinking"),
        ({"role": "tool", "tool_name": []}, "messages[0].tool_name"),
        ({"role": "assistant", "tool_calls": {"a": 1}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": ["add"]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": "x"}}]}, "messages[0].tool_calls[0].id"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": "{bad"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_message_of_another_shape_is_refused_by_the_name_of_its_field(message: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(message)
    assert refused.value.param == field
    assert refused.value.message.startswith(f"Field '{field}': ")


@pytest.mark.parametrize("value", ["Hi", {"role": "user"}, 5, True])
def test_messages_are_a_list(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^Field 'messages': must be a list$"):
        messages_of(value, Album())


@pytest.mark.parametrize(
    ("text", "shown", "order"),
    [
        ("What?", "@@@What?", "abc"),
        ("A [img] is what?", "@@A @ is what?", "bca"),
        ("[img] or [img] or [img] or [img]", "@ or @ or @ or [img]", "abc"),
    ],
)
def test_images_stand_where_the_text_has_a_place_for_them_or_before_it(text: str, shown: str, order: str) -> None:
    album = Album()
    marked = illustrated(text, ["a", "b", "c"], "images", album)
    assert marked.replace(album.mark, "@") == shown
    assert "".join(picture.data for picture in album.pictures) == order


def test_a_place_for_an_image_is_plain_text_where_there_is_none() -> None:
    assert illustrated("an [img]", [], "images", Album()) == "an [img]"


def test_an_image_is_told_of_by_its_place() -> None:
    album = Album()
    messages_of([{"role": "user"}, {"role": "user", "content": "[img]", "images": ["a", "b"]}], album)
    assert [picture.name for picture in album.pictures] == ["messages[1].images[1]", "messages[1].images[0]"]
