"""How models are described."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.models import capabilities, details_json, modified_at, parameter_size
from tests.api.scripted_worker import card


@pytest.mark.parametrize(
    ("n_params", "size"),
    [
        (134_515_008, "134.52M"),
        (8_030_261_312, "8.0B"),
        (7_000_000_000, "7B"),
        (2_000_000, "2M"),
        (102_976, "103K"),
        (999, "999"),
        (0, "0"),
    ],
)
def test_parameters_are_counted_as_ollama_counts_them(n_params: int, size: str) -> None:
    assert parameter_size(n_params) == size


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ["completion"]),
        (
            {"has_vision": True, "can_call": True, "can_infill": True, "can_reason": True},
            ["completion", "vision", "tools", "insert", "thinking"],
        ),
        ({"can_generate": False, "pooling": "mean", "can_call": True}, ["embedding"]),
        ({"can_generate": False, "pooling": "rank"}, ["rerank"]),
    ],
)
def test_a_model_says_what_it_can_do_in_the_words_of_ollama(more: dict[str, Any], words: list[str]) -> None:
    assert capabilities(card("m", **more)) == words


def test_a_model_is_described_as_its_file_is() -> None:
    described = card("m", architecture="llama", quantization="Q4_K_M", ftype="Q4_K - Medium", modified_at=1.5)
    assert modified_at(described) == "1970-01-01T00:00:01.500000+00:00"
    for unknown in (0.0, 1e14, -1e14, 1e300):  # a file system may tell of any year
        assert modified_at(card("m", modified_at=unknown)) == ""
    details = details_json(described)
    assert (details["family"], details["families"], details["quantization_level"]) == ("llama", ["llama"], "Q4_K_M")
