"""Vectors as OpenAI and as llama.cpp tell them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from api.schemas.ask import Ask, Origin
from api.schemas.embeddings import embedding, embeddings
from shared.errors import InvalidRequest
from shared.events import Finished, Vector
from shared.jobs import MAX_NORM, Embedding

ROWS = np.array([[1.0, 0.5], [0.25, -2.0]], dtype=np.float32)


def answered(ask: Ask) -> Any:
    """Of one input with two rows, and of one that was pooled, told in the wrong order."""
    pooled = Vector.of(1, ROWS[0], prompt_tokens=3)
    rows = Vector.of(0, ROWS, prompt_tokens=2)
    return ask.shape(Origin("job_0_1", "tiny", 0)).body([Finished(status="succeeded", parts=(pooled, rows))])


def test_llamacpps_answer_has_rows_for_each_input() -> None:
    assert answered(embedding({"input": ["a", "b"]})) == [
        {"index": 0, "embedding": [[1.0, 0.5], [0.25, -2.0]]},
        {"index": 1, "embedding": [[1.0, 0.5]]},
    ]


def test_openais_answer_has_one_list_for_each_input() -> None:
    answer = answered(embeddings({"input": ["a", "b"], "encoding_format": "base64"}))
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert np.frombuffer(base64.b64decode(answer["data"][1]["embedding"]), dtype="<f4").tolist() == [1.0, 0.5]
    assert answered(embeddings({"input": ["a", "b"]}))["data"][1] == {
        "embedding": [1.0, 0.5],
        "index": 1,
        "object": "embedding",
    }


def test_only_openai_insists_on_one_vector_for_an_input() -> None:
    asked = embeddings({"input": "a"}).request, embedding({"input": "a"}).request
    assert [isinstance(request, Embedding) and request.is_pooled for request in asked] == [True, False]


@pytest.mark.parametrize(
    ("fields", "inputs"),
    [
        ({"input": "a", "content": "b"}, ("a",)),
        ({"content": "b"}, ("b",)),
        ({"input": None, "content": ["b", [5, 6]]}, ("b", (5, 6))),
        ({"content": {"prompt_string": "b"}}, ("b",)),
    ],
)
def test_llamacpps_inputs_have_two_names(fields: dict[str, Any], inputs: tuple[Any, ...]) -> None:
    request = embedding(fields).request
    assert isinstance(request, Embedding) and request.inputs == inputs


def test_llamacpps_name_for_inputs_means_its_answer_on_openais_path_too() -> None:
    assert answered(embeddings({"content": ["a", "b"]})) == answered(embedding({"content": ["a", "b"]}))
    assert "data" in answered(embeddings({"input": ["a", "b"], "content": "c"}))


@pytest.mark.parametrize("norm", [-1, 0, 1, 2, 3, MAX_NORM])
def test_the_norm_is_chosen_by_its_number(norm: int) -> None:
    for read_body in (embedding, embeddings):
        request = read_body({"input": "a", "embd_normalize": norm}).request
        assert isinstance(request, Embedding) and request.norm == norm


@pytest.mark.parametrize(
    "fields",
    [
        *({"embd_normalize": norm} for norm in (-2, MAX_NORM + 1, 2.0, "2", True, 10**30)),
        *({"encoding_format": name} for name in ("hex", "", 5, "x")),
        *({"dimensions": number} for number in (10, 0, "10")),
    ],
    ids=str,
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(fields: dict[str, Any]) -> None:
    (name,) = fields
    for read_body in (embedding, embeddings):
        with pytest.raises(InvalidRequest, match=f"^Field '{name}'"):
            read_body({"input": "a"} | fields)


@pytest.mark.parametrize(
    "fields", [{}, {"input": None}, {"content": ""}, {"input": "", "content": "x"}, {"content": []}]
)
def test_nothing_cannot_be_embedded(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"^Field '(input|content)'"):
        embedding(fields)
