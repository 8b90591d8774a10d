"""DRY against llama.cpp's own, with the demo model's vocabulary: breakers are found in real tokens."""

from collections.abc import Iterator
from typing import SupportsIndex

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
from worker.engine.sampling.breakers import NO_BREAKERS, Breakers
from worker.engine.sampling.dry import Dry, Repetition
from worker.engine.sampling.repeats import Repeats, common_prefixes
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
    assert logits_after(sampling, tokens, n_prompt, NO_BREAKERS, row) == pytest.approx(expected, rel=1e-5)


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
    assert len(breakers.sequences) > 1000


def logits_after(sampling: Sampling, tokens: list[int], n_prompt: int, breakers: Breakers, row: Floats) -> Floats:
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


class Counted(list[int]):
    """Counts how often one of its tokens is read."""

    n_reads = 0

    def __getitem__(self, index: SupportsIndex) -> int:  # type: ignore[override]  # nobody slices it
        self.n_reads += 1
        return super().__getitem__(index)


def fibonacci(n: int) -> list[int]:
    """Repeats itself at all scales."""
    before, word = [1], [0, 1]
    while len(word) < n:
        before, word = word, word + before
    return word[:n]


N_HOSTILE = 3000
HOSTILE = {
    "one token": [7] * N_HOSTILE,
    "two in turn": [7, 8] * (N_HOSTILE // 2),
    "a period of many": list(range(50)) * (N_HOSTILE // 50),
    "runs": ([7] * 49 + [8] + [7] * 49 + [9]) * (N_HOSTILE // 100),
    "a run at the end": [8] + [7] * (N_HOSTILE - 1),
    "self-similar": fibonacci(N_HOSTILE),
}


@pytest.mark.parametrize("tokens", HOSTILE.values(), ids=HOSTILE)
def test_no_prompt_takes_more_than_two_comparisons_a_token(tokens: list[int]) -> None:
    counted = Counted(tokens)
    starts = [place for place in range(1, len(tokens)) if tokens[place] == tokens[0]]
    found = common_prefixes(counted, starts)
    assert counted.n_reads <= 2 * 2 * len(tokens)
    for start, length in zip(starts, found, strict=True):
        rest = tokens[start:]
        assert rest[:length] == tokens[:length] and (length == len(rest) or rest[length] != tokens[length])


def test_no_breaker_that_never_ends_takes_more_than_its_length_for_each_token() -> None:
    n_behind = 20
    breakers = Breakers.of((*[7] * n_before, end) for n_before in range(n_behind) for end in range(100, 150))
    counted = Counted([7] * N_HOSTILE)
    assert breakers.last(counted, range(len(counted))) is None
    assert counted.n_reads <= (n_behind + 1) * len(counted)


@pytest.mark.parametrize("tokens", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("size", [100, 2 * N_HOSTILE])
def test_a_prompt_at_once_and_token_by_token_is_the_same(tokens: list[int], size: int) -> None:
    breakers = Breakers.of([(9,), (49, 0, 1), (8, 7, 8, 8)])
    pushed, replayed, restored = (Dry(Repetition(1.0, 1.01, 1), size, breakers) for _ in range(3))
    replayed.replay(tokens[:-300])
    restored.restore(Repeats.of(tokens[:-300], breakers))
    for token in tokens[:-300]:
        pushed.push(token)
    for n, token in enumerate(tokens[-300:]):
        if n % 7 == 0:
            assert costs(pushed) == costs(replayed) == costs(restored)
        for dry in (pushed, replayed, restored):
            dry.push(token)
