"""ollama's options: their defaults are not ours, and its words for a wrong type are its own."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.ollama.fields import GenerateBody
from api.schemas.ollama.options import OptionFields
from api.schemas.strict import read
from shared.errors import InvalidRequest


def given(options: dict[str, Any]) -> dict[str, Any]:
    return read(GenerateBody, {"options": options}).options.generation()


def test_what_is_not_said_is_ollamas_default() -> None:
    asked = given({})
    sampling = asked["sampling"]
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.8, 40, 0.9, 0.0)
    assert (sampling.typical_p, sampling.repeat_last_n, sampling.repeat_penalty) == (1.0, 64, 1.0)
    assert (sampling.mirostat, sampling.mirostat_tau, sampling.mirostat_eta) == (0, 5.0, 0.1)
    assert sampling.seed is None
    assert (asked["n_predict"], asked["n_keep"], asked["n_ctx"], asked["stop"]) == (-1, 4, None, ())


def test_a_part_of_the_options_leaves_the_others_as_they_are() -> None:
    sampling = given({"temperature": 0, "seed": 0})["sampling"]
    assert (sampling.temperature, sampling.seed, sampling.top_k, sampling.top_p) == (0.0, 0, 40, 0.9)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("top_k", "3", "of type integer"),
        ("top_k", True, "of type integer"),
        ("num_ctx", [], "of type integer"),
        ("num_gpu", "all", "of type integer"),
        ("temperature", "hot", "of type float32"),
        ("temperature", False, "of type float32"),
        ("use_mmap", 1, "of type boolean"),
        ("stop", "x", "of type array"),
        ("stop", ["x", 1], "of an array of strings"),
    ],
)
def test_a_wrong_type_is_refused_in_ollamas_words(name: str, value: Any, kind: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        given({name: value})
    assert refused.value.message == f'option "{name}" must be {kind}'
    assert refused.value.param == f"options.{name}"


@pytest.mark.parametrize("name", sorted(OptionFields.model_fields))
def test_every_option_has_a_type_and_takes_null_for_nothing(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f'option "{name}" must be'):
        given({name: {"an": "object"}})
    assert given({name: None}) == given({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 2**32),
        ("seed", -2),
        ("num_predict", 1e12),
        ("num_ctx", 10**30),
        ("temperature", 1e39),
        ("repeat_penalty", 0),
        ("repeat_last_n", -2),
        ("stop", ["x"] * 257),
        ("stop", ["x" * 1025]),
    ],
)
def test_what_no_sampler_can_be_given_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=rf"^Field 'options\.{name}"):
        given({name: value})


def test_unknown_options_and_those_of_loading_change_nothing() -> None:
    loading = {"num_gpu": 99, "num_batch": 8, "num_thread": 3, "use_mmap": False, "low_vram": True, "main_gpu": 1}
    assert given({"tfs_z": "anything", "penalize_newline": 3, **loading}) == given({})


def test_a_fraction_is_cut_where_a_whole_number_is_meant() -> None:
    assert given({"top_k": 2.9})["sampling"].top_k == 2
    assert given({"num_predict": -1.5})["n_predict"] == -1


@pytest.mark.parametrize(
    ("asked", "n_predict"),
    [
        ({}, -1),
        ({"num_predict": 7}, 7),
        ({"num_predict": 0}, -1),
        ({"num_predict": -2}, -1),
        ({"num_predict": -1, "num_ctx": 100}, 1000),
        ({"num_predict": 0, "num_ctx": 100}, 1000),
        ({"num_predict": 1001, "num_ctx": 100}, 1000),
        ({"num_predict": 999, "num_ctx": 100}, 999),
        ({"num_ctx": 2**31 - 1}, 2**31 - 1),
    ],
)
def test_a_text_without_a_limit_ends_after_ten_contexts_where_their_size_is_said(
    asked: dict[str, Any], n_predict: int
) -> None:
    assert given(asked)["n_predict"] == n_predict


@pytest.mark.parametrize(("asked", "n_ctx"), [(512, 512), (1, 4), (0, 4), (-5, 4)])
def test_a_context_has_at_least_some_tokens(asked: int, n_ctx: int) -> None:
    assert given({"num_ctx": asked})["n_ctx"] == n_ctx


@pytest.mark.parametrize(("asked", "n_keep"), [(0, 0), (9, 9), (-1, -1), (-7, -1)])
def test_a_negative_number_keeps_the_whole_prompt(asked: int, n_keep: int) -> None:
    assert given({"num_keep": asked})["n_keep"] == n_keep


def test_an_empty_stop_string_stops_nothing() -> None:
    assert given({"stop": ["", "a", ""]})["stop"] == ("a",)
