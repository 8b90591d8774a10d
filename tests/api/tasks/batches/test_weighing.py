from __future__ import annotations

from typing import Any

import pytest

from api.tasks.batches.weighing import OVERHEAD, Weights, weight_of
from shared.jobs import Completion, Embedding, Request, Sampling
from tests.api.tasks.batches.test_pace import batch


def completion(**fields: Any) -> Completion:
    return Completion(prompts=("x",), sampling=Sampling(), **fields)


@pytest.mark.parametrize(
    ("lighter", "heavier"),
    [
        (completion(n_predict=10), completion(n_predict=100)),
        (completion(n_predict=10), completion(n_predict=10, n=8)),
        (completion(n_predict=10), completion(n_predict=10, n_probs=20)),
        (completion(n_predict=100), completion()),
        (Embedding(inputs=("a",)), Embedding(inputs=("a",) * 100)),
    ],
)
def test_who_asks_for_more_weighs_more(lighter: Request, heavier: Request) -> None:
    assert 500 + OVERHEAD < weight_of(lighter, 500) < weight_of(heavier, 500)


def test_an_embedding_weighs_what_the_models_vectors_take() -> None:
    request = Embedding(inputs=("a",) * 10)
    assert weight_of(request, 0, 100) < weight_of(request, 0, 1000) < weight_of(request, 0)


def test_what_is_not_known_of_a_line_is_the_average_of_the_plan() -> None:
    weights = Weights()
    on_its_way = batch(n_fed=10, plan_offset=10_000)
    assert weights.of(on_its_way, ["a", "b"]) == 2 * (2000 + OVERHEAD)
    weights.add(on_its_way.id, {"c": 5})
    assert weights.of(on_its_way, ["a", "c"]) == 2000 + OVERHEAD + 5
    assert weights.of(on_its_way, []) == 0
    assert weights.of(on_its_way, ["c"]) == 2000 + OVERHEAD, "what was collected is forgotten"
