"""The fields of every generating path."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.generation import DEFAULT_SAMPLERS, GenerationFields
from api.schemas.llamacpp import completion
from api.schemas.openai import chat, completions
from api.schemas.strict import read
from shared.errors import InvalidRequest, NotSupported, SlotstreamError
from shared.jobs import Completion, Lane, Sampling


def fields(**given: Any) -> GenerationFields:
    return read(GenerationFields, given)


def test_the_defaults_are_those_of_the_engine() -> None:
    assert fields().sampling() == Sampling()
    assert fields().limit() == -1
    assert fields().lane is None


@pytest.mark.parametrize(
    "given",
    [
        {"n_predict": "3"},
        {"n_predict": True},
        {"n_predict": 2.7},
        {"n_predict": 10**30},
        {"n_predict": -2},
        {"n_predict": -5},
        {"max_tokens": "1"},
        {"stream": "false"},
        {"stream": 1},
        {"top_p": {}},
        {"stop": 1},
        {"stop": [1]},
        {"stop": {"a": 1}},
        {"stop": True},
        {"stop": [None]},
        {"seed": -2},
        {"seed": 2**32},
        {"seed": 2**63},
        {"seed": "x"},
        {"seed": True},
        {"seed": 1.0},
        {"temperature": 1e39},
        {"temperature": "hot"},
        {"repeat_penalty": 0},
        {"repeat_last_n": -2},
        {"min_keep": -1},
        {"n_discard": -32},
        {"n_keep": -7},
        {"n": 0},
        {"priority": "urgent"},
        {"stream_options": 1},
        {"logit_bias": 5},
        {"logit_bias": [[1]]},
        {"logit_bias": [[1, True]]},
        {"logit_bias": [[-1, 1]]},
        {"logit_bias": [[True, 1]]},
        {"logit_bias": {"1": "x"}},
        {"logit_bias": [[2**31, 1]]},
    ],
    ids=str,
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(InvalidRequest, match=f"^Field '{name}"):
        fields(**given)


def test_null_is_the_default_for_every_field() -> None:
    assert fields(**dict.fromkeys(GenerationFields.model_fields)) == fields()


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"top_k": -5}, "top_k", 0),
        ({"top_k": 10**6}, "top_k", 10**6),
        ({"top_p": 7}, "top_p", 1.0),
        ({"min_p": -1}, "min_p", 0.0),
        ({"temperature": -1}, "temperature", 0.0),
        ({"temperature": 1e38}, "temperature", 1e38),
        ({"seed": -1}, "seed", None),
        ({"seed": 0}, "seed", 0),
        ({"seed": 2**32 - 1}, "seed", 2**32 - 1),
        ({"logit_bias": [[5, -100]]}, "logit_bias", ((5, -100.0),)),
        ({"logit_bias": [[5, False]]}, "logit_bias", ((5, None),)),
        ({"logit_bias": {"5": 1.5}}, "logit_bias", ((5, 1.5),)),
    ],
    ids=str,
)
def test_sampling_is_clamped_like_llamacpp(given: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(fields(**given).sampling(), name) == value


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"n_predict": 0}, 0),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6, "max_tokens": 5}, 6),
        ({"n_predict": 7, "max_tokens": 5}, 7),
        ({"n_predict": -1}, -1),
    ],
)
def test_the_limit_has_three_names(given: dict[str, Any], limit: int) -> None:
    assert fields(**given).limit() == limit


@pytest.mark.parametrize(
    ("stop", "stops"),
    [("", ()), ([""], ()), (["", "there"], ("there",)), (None, ()), ([], ()), ("a", ("a",))],
)
def test_empty_stops_are_ignored(stop: Any, stops: tuple[str, ...]) -> None:
    request = completion({"prompt": "x", "stop": stop}).requests[0]
    assert isinstance(request, Completion) and request.stop == stops


@pytest.mark.parametrize(
    ("given", "lane"),
    [
        ({"priority": "bulk"}, Lane.BULK),
        ({"priority": "interactive", "service_tier": "flex"}, Lane.INTERACTIVE),
        ({"service_tier": "flex"}, Lane.BULK),
        ({"service_tier": "auto"}, None),
    ],
)
def test_the_lane_is_ours_or_openais_word(given: dict[str, Any], lane: Lane | None) -> None:
    assert fields(**given).lane == lane


NATIVE = [
    ("preserved_tokens", ["<think>"], [[], None]),
    ("mirostat", 2, [0]),
    ("dry_multiplier", 0.8, [0, 0.0]),
    ("xtc_probability", 0.5, [0]),
    ("top_n_sigma", 1.0, [-1, 0]),
    ("dynatemp_range", 0.5, [0]),
    ("samplers", ["top_k"], [DEFAULT_SAMPLERS]),
    ("n_probs", 3, [0]),
    ("n", 2, [1]),
    ("id_slot", 1, [-1]),
    ("image_data", [{"data": "", "id": 1}], [[]]),
    ("lora", [{"id": 0, "scale": 1}], [[]]),
    ("truncate", True, [False]),
]


@pytest.mark.parametrize(("name", "on", "offs"), NATIVE, ids=[row[0] for row in NATIVE])
def test_what_this_build_cannot_do_is_refused_unless_it_is_off(name: str, on: Any, offs: list[Any]) -> None:
    with pytest.raises(NotSupported, match=f"'{name}'") as caught:
        completion({"prompt": "x", name: on})
    assert caught.value.param == name
    for off in offs:
        assert completion({"prompt": "x", name: off})


@pytest.mark.parametrize(
    ("name", "value"), [("mirostat", "2"), ("mirostat", True), ("lora", {}), ("truncate", 1)]
)
def test_a_wrong_type_of_it_is_still_a_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest):
        completion({"prompt": "x", name: value})


MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"response_format": {"type": "json_object"}}, NotSupported),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, NotSupported),
        ({"response_format": {"type": "sound"}}, InvalidRequest),
        ({"response_format": "text"}, InvalidRequest),
        ({"logprobs": True}, NotSupported),
        ({"logprobs": True, "top_logprobs": 3}, NotSupported),
        ({"top_logprobs": 3}, InvalidRequest),
        ({"logprobs": True, "top_logprobs": 21}, InvalidRequest),
        ({"logprobs": True, "top_logprobs": -1}, InvalidRequest),
        ({"n": 2}, NotSupported),
        ({"tool_choice": "required"}, InvalidRequest),
        ({"tools": {}}, InvalidRequest),
        ({"tools": [{}]}, InvalidRequest),
        ({"modalities": ["text", "audio"]}, NotSupported),
        ({"continue_final_message": True}, NotSupported),
        ({"continue_final_message": True, "add_generation_prompt": True}, InvalidRequest),
    ],
    ids=str,
)
def test_chat_refuses_what_it_cannot_do(given: dict[str, Any], error: type[SlotstreamError]) -> None:
    with pytest.raises(error):
        chat({"messages": MESSAGES} | given)


@pytest.mark.parametrize(
    "given",
    [
        {"n": 1},
        {"tools": []},
        {"tools": None, "tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"logprobs": False},
        {"stream_options": {}},
        {"stream_options": {"include_usage": True}},
        {"user": "me", "store": True, "made_up": [1]},
        {"modalities": ["text"]},
        {"continue_final_message": False},
    ],
    ids=str,
)
def test_chat_lets_harmless_fields_pass(given: dict[str, Any]) -> None:
    assert chat({"messages": MESSAGES} | given)


@pytest.mark.parametrize(
    "given", [{"logprobs": 0}, {"logprobs": 2}, {"echo": True}, {"suffix": "x"}, {"best_of": 2}], ids=str
)
def test_text_completions_refuse_what_they_cannot_do(given: dict[str, Any]) -> None:
    with pytest.raises(NotSupported):
        completions({"prompt": "x"} | given)
