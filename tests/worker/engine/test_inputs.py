"""What inputs become, and how long they may be, by a model's facts and the settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worker.engine import EngineConfig, InputRules, Model, ModelFacts


@pytest.fixture(scope="module")
def facts(request: pytest.FixtureRequest) -> ModelFacts:
    with Model.load(request.getfixturevalue("byte_model")) as model:
        return model.facts


def rules(facts: ModelFacts, named: str = "", **more: Any) -> InputRules:
    """Of a model that names a pooling, in a slot of 1000 tokens."""
    metadata = {"llama.pooling_type": named} if named else {}
    return InputRules.of(replace(facts, metadata=metadata), EngineConfig(Path("x.gguf"), **more), 1000)


@pytest.mark.parametrize(
    ("named", "pooling"), [("", "mean"), ("0", "mean"), ("1", "mean"), ("2", "cls"), ("3", "last"), ("4", "rank")]
)
def test_inputs_are_pooled_as_the_model_names_it_or_by_the_mean(facts: ModelFacts, named: str, pooling: str) -> None:
    assert rules(facts, named).pooling == pooling
    assert rules(facts, named, pooling="none").pooling == "none"


@pytest.mark.parametrize(
    ("pooling", "is_causal", "n_ubatch", "most"),
    [
        ("mean", True, 512, (512, "n_ubatch")),
        ("none", True, 512, (512, "n_ubatch")),
        ("last", True, 512, (1000, "n_ctx")),
        ("rank", True, 512, (1000, "n_ctx")),
        ("last", True, 1500, (1500, "n_ubatch")),
        ("last", False, 512, (512, "n_ubatch")),
        ("rank", False, 512, (512, "n_ubatch")),
        ("mean", True, 4096, (2048, "n_ctx_train")),
    ],
)
def test_only_what_the_last_token_of_a_causal_model_says_may_be_computed_in_parts(
    facts: ModelFacts, pooling: str, is_causal: bool, n_ubatch: int, most: tuple[int, str]
) -> None:
    n_most, limit = most
    found = rules(replace(facts, is_causal=is_causal), pooling=pooling, n_ubatch=n_ubatch)
    assert (found.n_most, found.limit) == (n_most, limit)
    assert found.comes_in_parts == (limit == "n_ctx")
    assert found.fault(n_most) is None
    assert found.fault(n_most + 1) == (
        f"is too large to process: it has {n_most + 1} tokens, and this worker takes {n_most} ({limit})"
    )
    assert found.fault(0) == "has no tokens"
