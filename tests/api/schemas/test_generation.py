"""The fields of every generating path."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from api.schemas.ask import Ask
from api.schemas.generation import GenerationFields
from api.schemas.llamacpp import completion, infill
from api.schemas.openai import chat, completions
from api.schemas.strict import read
from shared.errors import InvalidRequest, NotSupported, SlotstreamError
from shared.jobs import Adapter, Completion, Generation, Infill, Lane, Truncation


def fields(**given: Any) -> GenerationFields:
    return read(GenerationFields, given)


def test_the_defaults_are_those_of_the_engine() -> None:
    assert completion({"prompt": "x"}).request == Completion(prompts=("x",))
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
        {"n_discard": -32},
        {"n_keep": -7},
        {"n": 0},
        {"n": 129},
        {"n_cmpl": 129},
        {"n": 1.0},
        {"truncate": 1},
        {"truncate": "head"},
        {"shift": "yes"},
        {"t_max_predict_ms": -2},
        {"n_indent": -1},
        {"n_probs": "many"},
        {"n_probs": True},
        {"post_sampling_probs": 1},
        {"n_cache_reuse": -1},
        {"sse_ping_interval": -2},
        {"priority": "urgent"},
        {"stream_options": 1},
        {"id_slot": True},
        {"id_slot": "0"},
        {"id_slot": 2**31},
        {"lora": {}},
        {"lora": [0]},
        {"lora": [{}]},
        {"lora": [{"id": 0}]},
        {"lora": [{"id": -1, "scale": 1}]},
        {"lora": [{"id": 0.5, "scale": 1}]},
        {"lora": [{"id": True, "scale": 1}]},
        {"lora": [{"id": 2**31, "scale": 1}]},
        {"lora": [{"id": 0, "scale": "1"}]},
        {"lora": [{"id": 0, "scale": 1e39}]},
        {"lora": [{"id": 0, "scale": None}]},
        {"lora": [{"id": 0, "scale": 1}] * 257},
    ],
    ids=lambda given: str(given)[:50],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(InvalidRequest, match=f"^Field '{name}"):
        fields(**given)


def test_null_is_the_default_for_every_field() -> None:
    assert fields(**dict.fromkeys(GenerationFields.model_fields)) == fields()


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
    request = completion({"prompt": "x", "stop": stop}).request
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
    ("grammar_lazy", True, [False]),
    ("grammar_triggers", [{"type": 0, "value": "x"}], [[]]),
]


@pytest.mark.parametrize(("name", "on", "offs"), NATIVE, ids=[row[0] for row in NATIVE])
def test_what_this_build_cannot_do_is_refused_unless_it_is_off(name: str, on: Any, offs: list[Any]) -> None:
    with pytest.raises(NotSupported, match=f"'{name}'") as caught:
        completion({"prompt": "x", name: on})
    assert caught.value.param == name
    for off in offs:
        assert completion({"prompt": "x", name: off})


@pytest.mark.parametrize(("name", "value"), [("grammar_lazy", "2"), ("preserved_tokens", {})])
def test_a_wrong_type_of_it_is_still_a_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest):
        completion({"prompt": "x", name: value})


MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"top_logprobs": 3}, InvalidRequest),
        ({"logprobs": True, "top_logprobs": 21}, InvalidRequest),
        ({"logprobs": True, "top_logprobs": -1}, InvalidRequest),
        ({"n": 129}, InvalidRequest),
        ({"logprobs": 1}, InvalidRequest),
        ({"system_prompt": "x"}, NotSupported),
        ({"tool_choice": "required"}, InvalidRequest),
        ({"tools": {}}, InvalidRequest),
        ({"tools": [{}]}, InvalidRequest),
        ({"modalities": ["text", "audio"]}, NotSupported),
        ({"continue_final_message": True}, InvalidRequest),
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
    ("given", "error"),
    [
        ({"suffix": "x", "prompt": ["a", "b"]}, InvalidRequest),
        ({"suffix": "x", "prompt": [5, 6]}, InvalidRequest),
        ({"suffix": "x", "system_prompt": "y"}, InvalidRequest),
        ({"suffix": 5}, InvalidRequest),
        ({"best_of": 2}, NotSupported),
        ({"best_of": 3, "n": 2}, NotSupported),
        ({"best_of": 1, "n": 2}, InvalidRequest),
        ({"best_of": 0}, InvalidRequest),
        ({"logprobs": -1}, InvalidRequest),
        ({"logprobs": True}, InvalidRequest),
        ({"logprobs": 1.0}, InvalidRequest),
        ({"echo": True, "logprobs": 0}, NotSupported),
        ({"echo": True, "prompt": [5, 6]}, NotSupported),
        ({"echo": "yes"}, InvalidRequest),
        ({"prompt": ["x"] * 1025, "n": 2}, InvalidRequest),
    ],
    ids=lambda value: str(value)[:60],
)
def test_text_completions_refuse_what_they_cannot_do(given: dict[str, Any], error: type[SlotstreamError]) -> None:
    with pytest.raises(error):
        completions({"prompt": "x"} | given)


@pytest.mark.parametrize(
    "given",
    [{"best_of": 1}, {"best_of": 2, "n": 2}, {"suffix": ""}, {"echo": False, "logprobs": 1}, {"logprobs": False}],
    ids=str,
)
def test_text_completions_let_pass_what_asks_for_nothing_more(given: dict[str, Any]) -> None:
    assert completions({"prompt": "x"} | given)


@pytest.mark.parametrize("more", [{"lora": [{"id": 0, "scale": 1}]}, {"id_slot": 2}])
def test_adapters_and_slots_are_chosen_on_all_generating_paths(more: dict[str, Any]) -> None:
    (name,) = more
    bodies: list[tuple[Any, dict[str, Any]]] = [
        (completion, {"prompt": "x"}),
        (completions, {"prompt": "x"}),
        (chat, {"messages": MESSAGES}),
    ]
    for read_body, body in [*bodies, (infill, {"input_prefix": "x", "input_suffix": "y"})]:
        assert getattr(asked(read_body(body | more)), name) == getattr(asked(completion({"prompt": "x"} | more)), name)


ADAPTER_0, ADAPTER_1 = Adapter(id=0, scale=-2), Adapter(id=1, scale=0.5)


def asked(ask: Ask) -> Generation:
    assert isinstance(ask.request, Generation)
    return ask.request


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"n": 2}, "n", 2),
        ({"n_cmpl": 3, "n": 2}, "n", 3),
        ({"n": 128}, "n", 128),
        ({"n_keep": -1}, "n_keep", -1),
        ({"n_keep": 10**9}, "n_keep", 10**9),
        ({"n_discard": 7}, "n_discard", 7),
        ({"truncate": True}, "truncate", Truncation.BLOCKS),
        ({"truncate": "blocks"}, "truncate", Truncation.BLOCKS),
        ({"truncate": "tail"}, "truncate", Truncation.TAIL),
        ({"truncate": False}, "truncate", None),
        ({"shift": True}, "shift", True),
        ({"shift": False}, "shift", False),
        ({}, "shift", None),
        ({"t_max_predict_ms": 250}, "t_max_predict_ms", 250),
        ({"n_indent": 4}, "n_indent", 4),
        ({"cache_prompt": False}, "cache_prompt", False),
        ({"post_sampling_probs": True}, "post_sampling_probs", True),
        ({"timings_per_token": True}, "timings_per_token", True),
        ({"id_slot": 3}, "id_slot", 3),
        ({"id_slot": -7}, "id_slot", -1),
        ({"lora": [{"id": 1, "scale": 0.5}, {"id": 0, "scale": -2}]}, "lora", (ADAPTER_1, ADAPTER_0)),
        ({"lora": []}, "lora", None),
        ({"system_prompt": "You are"}, "system_prompt", "You are"),
        (
            {"system_prompt": {"prompt": "You are", "anti_prompt": "U:", "assistant_name": "A:"}},
            "system_prompt",
            "You are",
        ),
        ({"system_prompt": {"prompt": "You are", "anti_prompt": "U:"}, "stop": ["."]}, "stop", (".", "U:")),
        ({"system_prompt": {"anti_prompt": ""}}, "stop", ()),
        ({"system_prompt": {}}, "system_prompt", ""),
        ({"system_prompt": [5, "x"]}, "system_prompt", (5, "x")),
    ],
    ids=str,
)
def test_what_is_asked_of_a_generation_reaches_the_worker(given: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(asked(completion({"prompt": "x"} | given)), name) == value


@pytest.mark.parametrize(
    ("read_body", "given", "has_own", "n_probs"),
    [
        (completion, {}, False, 0),
        (completion, {"n_probs": 0, "logprobs": 0}, False, 0),
        (completion, {"n_probs": -3}, False, 0),
        (completion, {"logprobs": 3}, True, 3),
        (completion, {"n_probs": 2, "logprobs": 3}, True, 2),
        (completions, {}, False, 0),
        (completions, {"logprobs": None}, False, 0),
        (completions, {"logprobs": 0}, True, 0),
        (completions, {"logprobs": 5}, True, 5),
        (completions, {"logprobs": 5, "n_probs": 2}, True, 2),
        (chat, {"logprobs": True}, True, 0),
        (chat, {"logprobs": True, "top_logprobs": 0, "n_probs": 4}, True, 0),
        (chat, {"logprobs": True, "top_logprobs": 20}, True, 20),
        (chat, {"logprobs": False, "n_probs": 4}, True, 4),
        (chat, {"logprobs": False}, False, 0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_each_dialect_asks_for_probabilities_in_its_own_way(
    read_body: Callable[[dict[str, Any]], Ask], given: dict[str, Any], has_own: bool, n_probs: int
) -> None:
    request = asked(read_body({"prompt": "x", "messages": MESSAGES} | given))
    assert (request.has_logprobs, request.n_probs, request.wants_logprobs) == (has_own, n_probs, has_own)


@pytest.mark.parametrize(
    ("given", "n_probs"),
    [
        ({"n_probs": 60_000, "n_predict": 1}, 60_000),
        ({"n_probs": 60_000, "n_predict": 0}, 60_000),
        ({"n_probs": 60_000, "n_predict": 4}, 16_384),
        ({"n_probs": 60_000, "n_predict": 1000}, 262),
        ({"n_probs": 60_000}, 32),
        ({"n_probs": 60_000, "n_predict": 10, "prompt": ["x", "y"], "n": 5}, 1024),
        ({"n_probs": 20, "n_predict": 2**31 - 1}, 20),
    ],
    ids=str,
)
def test_what_an_answer_tells_of_probabilities_is_bounded(given: dict[str, Any], n_probs: int) -> None:
    assert asked(completion({"prompt": "x"} | given)).n_probs == n_probs


def test_an_array_is_one_request_that_can_be_split() -> None:
    ask = completion({"prompt": ["a", [5], "b"], "n": 2, "top_k": 3})
    whole = ask.request
    assert isinstance(whole, Completion) and whole.prompts == ("a", (5,), "b") and whole.n_sequences == 6
    parts = ask.split()
    assert [part.prompts for part in parts if isinstance(part, Completion)] == [("a",), ((5,),), ("b",)]
    assert {part.model_copy(update={"prompts": whole.prompts}) for part in parts} == {whole}


def test_the_sides_of_an_infill_are_prompts_and_its_context_is_files() -> None:
    body = {"input_prefix": "def f(", "input_suffix": [5, "):"], "prompt": "a, ", "n": 2}
    extra = [{"filename": "b.py", "text": "x"}, {"text": "y"}, {"filename": None, "text": ""}]
    request = infill(body | {"input_extra": extra}).request
    assert isinstance(request, Infill) and request.n == 2
    assert (request.prefix, request.suffix, request.prompt) == ("def f(", (5, "):"), "a, ")
    assert request.extra == (("b.py", "x"), ("tmp", "y"), ("tmp", ""))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": None}, "input_suffix"),
        ({"input_suffix": 5}, "input_suffix"),
        ({"input_prefix": [-1]}, "input_prefix[0]"),
        ({"prompt": ["a"]}, "prompt"),
        ({"input_extra": {}}, "input_extra"),
        ({"input_extra": ["x"]}, "input_extra[0]"),
        ({"input_extra": [{"filename": "x"}]}, "input_extra[0].text"),
        ({"input_extra": [{"filename": 1, "text": "x"}]}, "input_extra[0].filename"),
    ],
    ids=str,
)
def test_an_infill_without_its_parts_is_refused_by_name(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        infill({"input_prefix": "a", "input_suffix": "b"} | given)
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (5, "system_prompt"),
        ([-1], "system_prompt[0]"),
        ({"prompt": 5}, "system_prompt.prompt"),
        ({"anti_prompt": 5}, "system_prompt.anti_prompt"),
        ({"assistant_name": ["A"]}, "system_prompt.assistant_name"),
    ],
    ids=str,
)
def test_a_system_prompt_of_the_wrong_kind_is_refused_by_name(given: Any, name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion({"prompt": "x", "system_prompt": given})
    assert caught.value.param == name


@pytest.mark.parametrize(("given", "keep_alive_s"), [(None, None), (7, 7.0), (0, math.inf), (-1, math.inf)])
@pytest.mark.parametrize("read_body", [completion, completions, chat])
def test_how_long_a_stream_may_be_silent_is_the_clients_to_say(
    read_body: Any, given: int | None, keep_alive_s: float | None
) -> None:
    fields = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "sse_ping_interval": given}
    assert read_body(fields).keep_alive_s == keep_alive_s
