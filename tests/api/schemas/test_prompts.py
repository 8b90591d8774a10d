"""The forms of a prompt."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.prompts import inputs_of, prompts_of
from shared.errors import InvalidRequest, NotSupported


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("hello", ("hello",)),
        ("", ("",)),
        ([9906, 28], ((9906, 28),)),
        ([9906, "hello", 28], ((9906, "hello", 28),)),
        (["hello", 28], (("hello", 28),)),
        ([[9906, 28], "hi", ["x", 30]], ((9906, 28), "hi", ("x", 30))),
        (["a", "b"], ("a", "b")),
        (["a"], ("a",)),
        ([""], ("",)),
        ([[]], ((),)),
        (["a", ""], ("a", "")),
        ([["a", "b"]], (("a", "b"),)),
        ({"prompt_string": "hi"}, ("hi",)),
        ([{"prompt_string": "hi"}, [1]], ("hi", (1,))),
        ([2**31 - 1], ((2**31 - 1,),)),
    ],
)
def test_a_prompt_is_read(value: Any, prompts: tuple[Any, ...]) -> None:
    assert prompts_of("prompt", value) == prompts


@pytest.mark.parametrize(
    "value",
    [
        *([], 5, True, {}, [-1], [2**31], [2**40], [1.5], [True], [None], ["a", None], ["a", [True]]),
        *([1, [2]], ["a", [-1]], [[1], [[2]]], {"prompt_string": 5}, ["a", 5.0], ["a"] * 2049),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_prompt_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="Field 'prompt"):
        prompts_of("prompt", value)


def test_images_are_refused_where_nobody_looks_at_them() -> None:
    with pytest.raises(NotSupported):
        prompts_of("prompt", {"prompt_string": "x", "multimodal_data": ["AAAA"]})
    assert prompts_of("prompt", {"prompt_string": "x", "multimodal_data": []}) == ("x",)
    with pytest.raises(InvalidRequest, match="must be a list"):
        prompts_of("prompt", {"prompt_string": "x", "multimodal_data": {}})


TEXT = {"type": "text", "text": "hello"}


@pytest.mark.parametrize("value", ["", [""], ["a", ""], [], [[]], 5, [[1], []], {}, {"content": []}])
def test_an_empty_input_cannot_be_embedded(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="Field 'input"):
        inputs_of("input", value)


@pytest.mark.parametrize(
    ("value", "n_inputs"),
    [
        *(("hello", 1), (["a", "b c", "a"], 3), ([28120, 905], 1), ([[28120], [905, 28]], 2), (["a", [1]], 2)),
        *(({"prompt_string": "x"}, 1), ([{"content": [TEXT]}, "x"], 2), (["a", 5, "b"], 1)),
    ],
    ids=str,
)
def test_inputs_are_counted_as_openai_does(value: Any, n_inputs: int) -> None:
    assert len(inputs_of("input", value)) == n_inputs


def test_the_text_parts_of_a_message_are_one_input() -> None:
    assert inputs_of("input", {"content": [TEXT]}) == inputs_of("input", "hello") == ("hello",)
    assert inputs_of("input", [{"content": [TEXT, TEXT]}, "x"]) == ("hellohello", "x")


@pytest.mark.parametrize("content", ["hello", None, {}, [5], [{"type": "poem"}], [{"type": "text"}], ["hello"]])
def test_what_is_no_text_part_is_no_input(content: Any) -> None:
    for value in ({"content": content}, ["x", {"content": content}]):
        with pytest.raises(InvalidRequest, match=r"Field 'input.*content"):
            inputs_of("input", value)


def test_an_image_cannot_be_embedded() -> None:
    with pytest.raises(NotSupported):
        inputs_of("input", {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]})
    with pytest.raises(NotSupported):
        inputs_of("input", {"prompt_string": "<__media__>", "multimodal_data": ["AAAA"]})
