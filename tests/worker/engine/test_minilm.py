"""A real embedder, read from its wheel, against the same model in numpy: tokens, vectors, and how they are computed."""

from pathlib import Path

import numpy as np
import pytest

from shared.events import Vector
from tests import minilm
from tests.worker.engine.faulty import Faults
from tests.worker.engine.harness import Recorded
from worker.engine import EmbedTask, EngineConfig, Model, SequenceKey

TEXTS = [
    "a",
    "How do I embed many short texts at once?",
    "Crème brûlée, s'il vous plaît — and don't forget the 20% off!",
    "ÅNGSTRÖM and naïveté are unaffordable: $3.50, C++ <tag> foo_bar",
    "我喜欢 unbelievably good tokenization",
    "The cat sat on the mat. A feline rested upon the rug. " * 3,
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return minilm.write_minilm(tmp_path_factory.mktemp("models") / "minilm.gguf")


def test_words_become_the_pieces_that_the_model_was_trained_on(path: Path) -> None:
    with Model.load(path) as model:
        for text in TEXTS:
            assert model.tokenize(text, add_special=True, parse_special=False) == minilm.tokenize(text)


def test_vectors_are_those_of_the_model_in_numpy_each_computed_by_itself(path: Path) -> None:
    """Within what GELU differs by, which llama.cpp approximates and rounds to 16 bits."""
    inputs = [minilm.tokenize(text) for text in TEXTS]
    faults = Faults(lambda _: None)
    with Recorded(EngineConfig(path, n_slots=2, n_threads=1), open_context=faults.open) as engine:
        n_before = len(faults.decodes)
        engine.submit(*(EmbedTask(SequenceKey(str(at), 0), tuple(tokens)) for at, tokens in enumerate(inputs)))
        endings = [engine.ending(str(at)) for at in range(len(inputs))]
        assert not engine.engine.can_generate
    vectors = np.array([ending.values() for ending in endings if isinstance(ending, Vector)])
    expected = np.array([minilm.embed(tokens) for tokens in inputs])
    assert vectors == pytest.approx(expected, abs=2e-3)
    assert (vectors * expected).sum(axis=1) == pytest.approx(1.0, abs=1e-4)
    assert [decode.n_tokens for decode in faults.decodes[n_before:]] == [len(tokens) for tokens in inputs]
