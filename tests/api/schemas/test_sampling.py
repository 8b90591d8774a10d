"""How the next token is chosen, in a client's words."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.sampling import MAX_BIASES, MAX_SAMPLERS, MAX_TEXT_BIASES, SamplingFields
from api.schemas.strict import read
from shared.errors import InvalidRequest, NotSupported
from shared.jobs import DEFAULT_SAMPLERS, SamplerKind, Sampling


def sampling(**given: Any) -> Sampling:
    return read(SamplingFields, given).sampling()


def test_every_parameter_has_a_field_and_the_engines_default() -> None:
    assert SamplingFields.model_fields.keys() == Sampling.model_fields.keys()
    assert sampling() == sampling(**dict.fromkeys(Sampling.model_fields)) == Sampling()


REFUSED: dict[str, list[Any]] = {
    "seed": [-2, 2**32, 2**63, "x", True, 1.0],
    "temperature": [1e39, "hot", True],
    "dynatemp_range": [-1e39, "x"],
    "dynatemp_exponent": [[]],
    "top_k": [1.5, True, "40", 10**30],
    "top_p": [{}, 1e300],
    "top_n_sigma": ["x"],
    "tfs_z": [True],
    "xtc_probability": ["0.5"],
    "min_keep": [-1, 2**31],
    "repeat_last_n": [-2, 1.0],
    "repeat_penalty": [0, -1, 1e39],
    "presence_penalty": [1e7],
    "frequency_penalty": [-1e7],
    "penalize_nl": [1, "no"],
    "penalty_prompt": [5, {}, {"prompt_string": "x"}],
    "dry_multiplier": ["x"],
    "dry_base": [False],
    "dry_allowed_length": [-1],
    "dry_penalty_last_n": [-2],
    "dry_sequence_breakers": [[], "x", [1], ["x"] * 65, ["x" * 257]],
    "mirostat": ["2", True, 1.5],
    "mirostat_tau": [1e39],
    "mirostat_eta": ["x"],
    "adaptive_target": [-1e39],
    "adaptive_decay": [-0.1, 1.0],
    "ignore_eos": [0],
    "samplers": [5, {}, [1], [None], ["top_k"] * (MAX_SAMPLERS + 1), "k" * (MAX_SAMPLERS + 1)],
    "logit_bias": [
        *(5, "x", [[1]], [[1, 2, 3]], [[1, True]], [[1, None]], [[-1, 1]], [[True, 1]], [[1.5, 1]], [[2**31, 1]]),
        *({"1": "x"}, {"1": True}, {"": 1}, {"x" * 257: 1}, {str(2**31): 1}, [[1, 1e39]], [{"token": 1}], ["ab"]),
        [[0, 1]] * (MAX_BIASES + 1),
        [["x", 1]] * (MAX_TEXT_BIASES + 1),
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_cannot_be_meant_is_refused_by_name(name: str) -> None:
    for value in REFUSED[name]:
        with pytest.raises(InvalidRequest, match=f"^Field '{name}"):
            sampling(**{name: value})


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("seed", -1, None),
        ("seed", 0, 0),
        ("seed", 2**32 - 1, 2**32 - 1),
        ("temperature", -1, 0.0),
        ("temperature", 1e38, 1e38),
        ("top_k", -5, 0),
        ("top_k", 0, 0),
        ("top_k", 10**6, 10**6),
        ("top_p", 7, 1.0),
        ("top_p", 0, 0.0),
        ("min_p", -1, 0.0),
        ("min_p", 2, 1.0),
        ("typical_p", 9, 1.0),
        ("tfs_z", 5, 1.0),
        ("xtc_probability", 3, 1.0),
        ("xtc_threshold", -1, 0.0),
        ("top_n_sigma", -7, -7.0),
        ("dynatemp_range", -1, -1.0),
        ("mirostat", 9, 2),
        ("mirostat", -3, 0),
        ("adaptive_target", 3, 1.0),
        ("adaptive_target", -5, -5.0),
        ("dry_base", 0.5, 1.75),
        ("dry_base", 2, 2.0),
        ("dry_penalty_last_n", -1, -1),
        ("repeat_last_n", -1, -1),
        ("repeat_last_n", 0, 0),
        ("penalty_prompt", "", ""),
        ("penalty_prompt", [5, 6], (5, 6)),
        ("penalty_prompt", [], ()),
        ("dry_sequence_breakers", ["\n", "", "a"], ("\n", "a")),
    ],
)
def test_a_value_out_of_range_is_brought_back_as_llamacpp_does(name: str, given: Any, meant: Any) -> None:
    assert getattr(sampling(**{name: given}), name) == meant


TOP_K, TEMPERATURE, TYPICAL = SamplerKind.TOP_K, SamplerKind.TEMPERATURE, SamplerKind.TYPICAL_P


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["temperature", "top_k"], (TEMPERATURE, TOP_K)),
        (["temp", "TOP-K", "topk"], (TEMPERATURE, TOP_K, TOP_K)),
        (["typ_p", "typical_p", "typ-p", "typ"], (TYPICAL,) * 4),
        (["nucleus", "min-p"], (SamplerKind.TOP_P, SamplerKind.MIN_P)),
        (
            ["tfs_z", "tfs-z", "adaptive_p", "topnsigma"],
            (*[SamplerKind.TAIL_FREE] * 2, SamplerKind.ADAPTIVE_P, SamplerKind.TOP_N_SIGMA),
        ),
        (["no_such", "top_k"], (TOP_K,)),
        ([], ()),
        ("kt", (TOP_K, TEMPERATURE)),
        ("edskypmxt", DEFAULT_SAMPLERS),
        ("fa?", (SamplerKind.TAIL_FREE, SamplerKind.ADAPTIVE_P)),
        ("K", ()),
        ("", ()),
        (list(SamplerKind), tuple(SamplerKind)),
    ],
    ids=str,
)
def test_the_chain_is_named_by_words_or_by_characters(given: Any, meant: tuple[SamplerKind, ...]) -> None:
    assert sampling(samplers=given).samplers == meant


@pytest.mark.parametrize("given", [["top_k", "infill"], "ki"])
def test_a_step_of_llamacpp_that_there_is_not_is_refused_and_not_left_out(given: Any) -> None:
    with pytest.raises(NotSupported, match="'infill'"):
        sampling(samplers=given)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([[5, -100]], ((5, -100.0),)),
        ([[5, False]], ((5, None),)),
        ([[" word ", -1]], ((" word ", -1.0),)),
        ([["5", 1]], (("5", 1.0),)),
        ({"5": 1.5, "x": False}, ((5, 1.5), ("x", None))),
        ({"-1": 1, " 5": 2}, (("-1", 1.0), (" 5", 2.0))),
        ([{"token": 5, "bias": 2}, {"bias": None, "token": "x"}], ((5, 2.0), ("x", None))),
        ([], ()),
        ({}, ()),
    ],
    ids=str,
)
def test_a_bias_is_told_in_all_forms(given: Any, meant: Any) -> None:
    assert sampling(logit_bias=given).logit_bias == meant
