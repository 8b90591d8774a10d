"""docs/engine.md names files and tests that are there, and forgets no field of a request."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.jobs import Generation, SamplerKind, Sampling
from tests.faults.test_table import functions_of

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/engine.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.split("\n")
    if line.startswith("|") and not line.startswith(("|---", "| capability"))
]
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))
FILES = sorted({file for row in ROWS if "::" in row[3] for file in re.findall(r"`([\w/]+\.py)`", row[2])})

SEED_FIELDS = """prompt stream n_predict n_keep n_discard cache_prompt temperature dynatemp_range dynatemp_exponent
top_k top_p min_p tfs_z typical_p repeat_last_n repeat_penalty presence_penalty frequency_penalty penalize_nl
penalty_prompt mirostat mirostat_tau mirostat_eta seed n_probs min_keep grammar json_schema ignore_eos logit_bias
stop samplers id_slot system_prompt input_prefix input_suffix image_data"""
LATER_FIELDS = """max_tokens max_completion_tokens n n_cmpl logprobs top_logprobs n_indent n_cache_reuse
t_max_predict_ms return_tokens return_progress timings_per_token post_sampling_probs response_fields stream_options
top_n_sigma xtc_probability xtc_threshold dry_multiplier dry_base dry_allowed_length dry_penalty_last_n
dry_sequence_breakers adaptive_target adaptive_decay backend_sampling lora grammar_lazy grammar_triggers
preserved_tokens input_extra multimodal_data response_format"""
RUNNER_OPTIONS = "num_keep num_predict seed top_k top_p min_p typical_p repeat_last_n temperature mirostat stop"
OWN_NAMES = {"constraint": "grammar", "has_logprobs": "logprobs", "media": "image_data"}
"""Fields of ours that a client knows by another name."""


@pytest.mark.parametrize(("file", "name"), TESTS, ids=[name for _, name in TESTS])
def test_every_test_that_is_named_is_there(file: str, name: str) -> None:
    assert name.startswith("test_") and name in functions_of(file)


@pytest.mark.parametrize("file", FILES)
def test_every_file_that_is_named_is_there(file: str) -> None:
    assert (ROOT / file).is_file()


def test_each_row_is_shown_by_a_test_or_says_that_it_is_not_done() -> None:
    for capability, origin, place, shown in ROWS:
        assert set(origin.split()) <= {"S", "R", "T", "own"}, capability
        assert ("::test_" in shown and place) or shown in ("not yet", "next"), capability


@pytest.mark.parametrize("field", sorted(set(f"{SEED_FIELDS} {LATER_FIELDS} {RUNNER_OPTIONS}".split())))
def test_no_field_of_a_request_is_forgotten(field: str) -> None:
    assert f"`{field}`" in TEXT


def test_no_field_of_ours_is_forgotten() -> None:
    fields = {*Sampling.model_fields, *Generation.model_fields} - {"sampling"}
    assert [name for name in fields if f"`{OWN_NAMES.get(name, name)}`" not in TEXT] == []
    assert len(SamplerKind) == 11, "a new sampler wants a row"
