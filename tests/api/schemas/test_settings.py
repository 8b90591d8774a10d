"""`generation_settings` tells what was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.llamacpp import completion
from api.schemas.settings import settings_json
from api.schemas.strict import to_json
from shared.events import Answer, StopType
from shared.jobs import Completion, Constraint, Generation, SamplerKind, Sampling

TODAY = {
    *("seed", "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma"),
    *("xtc_probability", "xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty"),
    *("frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"),
    *("stop", "max_tokens", "n_predict", "n_keep", "n_discard", "ignore_eos", "stream", "logit_bias", "n_probs"),
    *("min_keep", "grammar", "grammar_lazy", "grammar_triggers", "preserved_tokens", "chat_format"),
    *("reasoning_format", "reasoning_in_content", "generation_prompt", "samplers", "speculative.types"),
    *("timings_per_token", "post_sampling_probs", "backend_sampling", "lora"),
}
OF_2024 = {"n_ctx", "model", "tfs_z", "penalize_nl", "penalty_prompt_tokens", "use_penalty_prompt_tokens"}


def settings(request: Generation, *banned: int) -> dict[str, Any]:
    answer = Answer(text="", ids=(), prompt="", prompt_tokens=1, stop_type=StopType.LIMIT, seed=5, banned=banned)
    return settings_json(request, answer, model="m", is_stream=False)


def asked(**given: Any) -> dict[str, Any]:
    request = completion({"prompt": "x"} | given).request
    assert isinstance(request, Generation)
    return settings(request)


def test_all_names_of_both_generations_are_told() -> None:
    assert asked().keys() >= TODAY | OF_2024
    assert to_json(asked())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"temperature": 0.5, "top_k": -1}, {"temperature": 0.5, "top_k": 0}),
        ({"samplers": "kt"}, {"samplers": ["top_k", "temperature"]}),
        (
            {},
            {"samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]},
        ),
        ({"mirostat": 7, "mirostat_tau": 3}, {"mirostat": 2, "mirostat_tau": 3.0}),
        ({"dry_sequence_breakers": ["a"]}, {"dry_sequence_breakers": ["a"]}),
        (
            {"logit_bias": {"5": False, "x": 1}},
            {"logit_bias": [{"bias": None, "token": 5}, {"bias": 1.0, "token": "x"}]},
        ),
        ({}, {"use_penalty_prompt_tokens": False, "penalty_prompt_tokens": [], "logit_bias": []}),
        ({"penalty_prompt": [5, 6]}, {"use_penalty_prompt_tokens": True, "penalty_prompt_tokens": [5, 6]}),
        ({"penalty_prompt": "x"}, {"use_penalty_prompt_tokens": True, "penalty_prompt_tokens": ["x"]}),
        (
            {"max_tokens": 9, "n_keep": -1, "n_discard": 3},
            {"n_predict": 9, "max_tokens": 9, "n_keep": -1, "n_discard": 3},
        ),
        ({"n": 3, "n_probs": 2, "stop": ["a", ""]}, {"n_cmpl": 3, "n_probs": 2, "stop": ["a"]}),
        ({"truncate": True, "shift": False}, {"truncate": "blocks", "shift": False}),
        (
            {"post_sampling_probs": True, "timings_per_token": True},
            {"post_sampling_probs": True, "timings_per_token": True},
        ),
        ({"lora": [{"id": 1, "scale": 2}]}, {"lora": [{"id": 1, "scale": 2.0}]}),
        ({"t_max_predict_ms": 5, "n_indent": 2}, {"t_max_predict_ms": 5, "n_indent": 2}),
    ],
    ids=str,
)
def test_what_was_asked_is_told_as_it_is_meant(given: dict[str, Any], told: dict[str, Any]) -> None:
    assert asked(**given).items() >= told.items()


def test_the_seed_is_the_one_that_was_used() -> None:
    assert asked()["seed"] == asked(seed=7)["seed"] == 5


def test_what_ends_a_generation_is_told_as_banned_when_it_is_ignored() -> None:
    request = Completion(prompts=("x",), sampling=Sampling(ignore_eos=True, logit_bias=((5, 1.0),)))
    told = settings(request, 0, 2)["logit_bias"]
    assert told == [{"bias": 1.0, "token": 5}, {"bias": None, "token": 0}, {"bias": None, "token": 2}]


@pytest.mark.parametrize(
    ("syntax", "text", "told"),
    [
        ("gbnf", 'root ::= "a"', {"grammar": 'root ::= "a"'}),
        ("json_schema", '{"type": "object"}', {"grammar": "", "json_schema": {"type": "object"}}),
        ("regex", "a+", {"grammar": "", "regex": "a+"}),
    ],
)
def test_a_constraint_is_told_in_its_own_syntax(syntax: Any, text: str, told: dict[str, Any]) -> None:
    request = Completion(prompts=("x",), constraint=Constraint(syntax=syntax, text=text))
    assert settings(request).items() >= told.items()


def test_biases_that_were_told_can_be_asked_for_again() -> None:
    told = asked(logit_bias={"5": False, "x": 1.5})["logit_bias"]
    assert asked(logit_bias=told)["logit_bias"] == told
    assert asked(samplers=list(SamplerKind))["samplers"] == list(SamplerKind)
