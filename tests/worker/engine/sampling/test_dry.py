"""DRY against llama.cpp's own, with the demo model's vocabulary: breakers are found in real tokens."""

from collections.abc import Iterator

import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.jobs import Generation, SamplerKind, Sampling
from tests.models import tiny_model
from tests.worker.engine.sampling.native import NativeChain
from worker.engine.llama import Model
from worker.engine.sampling import Floats, Sampler, Setting
from worker.engine.sampling.dry import Breakers, Dry, Repetition
from worker.engine.task import GenerateTask, SequenceKey
from worker.vocabulary import Vocabulary

N_CTX = 40
TEXTS = ("\n", "and then", "::")


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), max_size=80),
    n_prompt=st.integers(0, 80),
    multiplier=st.sampled_from([0.8, -0.5, 3.0]),
    base=st.sampled_from([1.0, 1.75, 4.0]),
    allowed_length=st.sampled_from([0, 1, 2, 4]),
    n_last=st.sampled_from([-1, 3, 12]),
)
def test_repetitions_cost_what_they_cost_in_llama_cpp(
    *, tokens: list[int], n_prompt: int, multiplier: float, base: float, allowed_length: int, n_last: int
) -> None:
    sampling = Sampling(
        samplers=(SamplerKind.DRY,),
        dry_multiplier=multiplier,
        dry_base=base,
        dry_allowed_length=allowed_length,
        dry_penalty_last_n=n_last,
        dry_sequence_breakers=(),
    )
    row = np.zeros(5, dtype=np.float32)
    with NativeChain(sampling, len(row), N_CTX) as chain:
        chain.accept(tokens)
        expected = chain.logits(row)
    assert logits_after(sampling, tokens, n_prompt, (), row) == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model.load(tiny_model()) as model:
        yield model


@pytest.fixture(scope="module")
def vocabulary(model: Model) -> Vocabulary:
    return Vocabulary(model)


@pytest.mark.parametrize("allowed_length", [0, 2])
@pytest.mark.parametrize(
    "text",
    [
        "one two three one two three",
        "one two\n three one two\n three",
        "one two and then one two and then",
        "one two and the one two and the",
        "one two: one two:: one two: one two:",
        "and then and then",
    ],
)
def test_phrases_end_where_they_end_in_llama_cpp(
    model: Model, vocabulary: Vocabulary, text: str, allowed_length: int
) -> None:
    sampling = Sampling(
        samplers=(SamplerKind.DRY,),
        dry_multiplier=1.0,
        dry_allowed_length=allowed_length,
        dry_sequence_breakers=TEXTS,
    )
    tokens = model.tokenize(text, add_special=False, parse_special=False)
    breakers = vocabulary.breakers(sampling)
    row = np.zeros(model.facts.n_vocab, dtype=np.float32)
    with NativeChain(sampling, len(row), N_CTX, llama_cpp.llama_model_get_vocab(model.pointer)) as chain:
        for n, token in enumerate(tokens, start=1):
            chain.accept([token])
            found = logits_after(sampling, tokens[:n], n // 2, breakers, row)
            assert np.allclose(found, chain.logits(row), rtol=1e-5)
    assert len(breakers) > 1000


def logits_after(
    sampling: Sampling, tokens: list[int], n_prompt: int, breakers: tuple[tuple[int, ...], ...], row: Floats
) -> Floats:
    """What DRY makes of a row when the first of some tokens were the prompt, and the others were chosen."""
    prompt, chosen = tuple(tokens[:n_prompt]), tokens[n_prompt:]
    task = GenerateTask(SequenceKey("j", 0), prompt, Generation(sampling=sampling), 1, breakers=breakers)
    sampler = Sampler.of(task, Setting(len(row), N_CTX))
    for token in chosen:
        sampler.accept(token)
    step = sampler.reshaping[SamplerKind.DRY]
    ids = step.touched()
    row = row.copy()
    row[ids] = step.reshape(ids, row[ids])
    return row


def costs(dry: Dry) -> dict[int, float]:
    ids = dry.touched()
    return dict(zip(ids.tolist(), (-dry.reshape(ids, np.zeros(len(ids), dtype=np.float32))).tolist(), strict=True))


NO_BREAKERS = Breakers({}, 0)


def test_a_window_slides_over_any_number_of_tokens() -> None:
    random = np.random.default_rng(0)
    tokens = random.integers(0, 3, 3000).tolist()
    sliding = Dry(Repetition(1.0, 1.1, 1), 100, NO_BREAKERS)
    for n, token in enumerate(tokens, start=1):
        sliding.push(token)
        if n % 97 == 0:
            fresh = Dry(Repetition(1.0, 1.1, 1), 100, NO_BREAKERS)
            fresh.replay(tokens[:n])
            assert costs(sliding) == costs(fresh)


def test_the_longest_repetition_costs_no_more_than_sums_can_hold() -> None:
    for base in (1.02, 1.75, 1e30):
        dry = Dry(Repetition(1.0, base, 2), 5000, NO_BREAKERS)
        dry.replay([7] * 4000)
        dry.push(7)
        assert list(costs(dry)) == [7]
        assert 1e8 < costs(dry)[7] <= np.float32(1e30)
