"""The bodies of ollama's requests: what is read of them, and what is refused in which words."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.ollama.fields import ChatBody, EmbedBody, GenerateBody
from api.schemas.strict import read
from shared.errors import InvalidRequest


@pytest.mark.parametrize("value", [5, 0.5, -1, "5m", "1h30m", "300ms", "-1s", "1.5h", ".5s", "2µs"])
def test_a_model_may_be_kept_for_any_time(value: Any) -> None:
    assert not read(GenerateBody, {"keep_alive": value}).is_unloading


@pytest.mark.parametrize("value", [0, 0.0, "0", "0s", "0m0s", "0.0h", "-0"])
def test_no_time_means_that_the_model_may_go(value: Any) -> None:
    assert read(GenerateBody, {"keep_alive": value}).is_unloading


@pytest.mark.parametrize("value", [True, "", "5", "m", "5 m", "5x", "1h 3m", {}, ["5m"], "٣s", "1" * 1_000_000])
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^Field 'keep_alive': must be a number of seconds or a duration"):
        read(GenerateBody, {"keep_alive": value})


@pytest.mark.parametrize(
    ("value", "kwargs"),
    [
        (None, {}),
        (True, {"enable_thinking": True}),
        (False, {"enable_thinking": False}),
        ("low", {"enable_thinking": True, "reasoning_effort": "low"}),
        ("max", {"enable_thinking": True, "reasoning_effort": "max"}),
    ],
)
def test_the_template_is_told_how_much_to_think_where_the_client_says_so(value: Any, kwargs: dict[str, Any]) -> None:
    assert read(ChatBody, {"think": value}).template_kwargs == kwargs


@pytest.mark.parametrize("value", ["hard", "", 1, 0, [], {"a": 1}])
def test_no_other_thinking_is_taken(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r'^invalid think value: .* \(must be "high", "medium", "low", "max"'):
        read(ChatBody, {"think": value})


@pytest.mark.parametrize("value", [-1, 21])
def test_alternatives_are_bounded(value: int) -> None:
    with pytest.raises(InvalidRequest, match=r"^top_logprobs must be between 0 and 20$"):
        read(ChatBody, {"top_logprobs": value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", 5),
        ("suffix", []),
        ("system", {}),
        ("raw", "true"),
        ("stream", "false"),
        ("stream", 0),
        ("images", "abc"),
        ("images", [5]),
        ("context", ["a"]),
        ("options", []),
        ("options", "x"),
        ("truncate", 1),
        ("shift", "no"),
        ("logprobs", 3),
        ("top_logprobs", "3"),
        ("model", 7),
        ("priority", "urgent"),
    ],
)
def test_a_field_of_a_wrong_type_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=rf"^Field '{field}") as refused:
        read(GenerateBody, {field: value})
    assert refused.value.param is not None and refused.value.param.startswith(field)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ({}, ()),
        ({"input": None}, ()),
        ({"input": ""}, ()),
        ({"input": []}, ()),
        ({"input": "a"}, ("a",)),
        ({"input": ["a", "b"]}, ("a", "b")),
    ],
)
def test_inputs_are_a_text_or_a_list_of_them(body: dict[str, Any], inputs: tuple[str, ...]) -> None:
    assert read(EmbedBody, body).inputs == inputs


@pytest.mark.parametrize("value", [5, {}, {"a": 1}, [5], ["a", None], [["a"]], True, [1, 2], 0, False])
def test_no_other_input_is_taken(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^invalid input type$"):
        _ = read(EmbedBody, {"input": value}).inputs


def test_vectors_are_not_shortened() -> None:
    with pytest.raises(InvalidRequest, match=r"^Field 'dimensions'"):
        _ = read(EmbedBody, {"input": "a", "dimensions": 3}).inputs
