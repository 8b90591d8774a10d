"""What remembers, against llama.cpp's own, token after token: each is shown what llama.cpp chose."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.jobs import Generation, SamplerKind, Sampling
from tests.worker.engine.sampling.native import NativeChain, shares_of
from tests.worker.engine.sampling.parts import row_of
from worker.engine.sampling import Floats, Sampler, Setting, candidates, choose
from worker.engine.task import GenerateTask, SequenceKey

N_VOCAB = 500
N_CTX = 64

remembering = st.builds(
    Sampling,
    temperature=st.sampled_from([0.7, 1.0, 1.5]),
    mirostat=st.sampled_from([1, 2]),
    mirostat_tau=st.sampled_from([0.5, 3.0, 5.0, 8.0]),
    mirostat_eta=st.sampled_from([0.0, 0.1, 0.5]),
) | st.builds(
    Sampling,
    samplers=st.sampled_from([(SamplerKind.ADAPTIVE_P,), (SamplerKind.ADAPTIVE_P, SamplerKind.MIN_P)]),
    adaptive_target=st.sampled_from([0.0, 0.3, 0.9, 1.0, 7.0]),
    adaptive_decay=st.sampled_from([0.0, 0.5, 0.9, 2.0]),
)


@settings(max_examples=50, deadline=None)
@given(sampling=remembering, seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.3, 1.0, 4.0]))
def test_what_is_left_follows_what_was_chosen_as_in_llama_cpp(sampling: Sampling, seed: int, spread: float) -> None:
    sampler = Sampler(sampling, 0, Setting(N_VOCAB, N_CTX))
    assert sampler.feedback is not None
    with NativeChain(sampling, N_VOCAB, N_CTX) as chain:
        for step in range(8):
            row = row_of(seed + step, N_VOCAB, spread)
            expected, token = chain.apply(row)
            chain.accept([token])
            pool = candidates(row.copy(), sampler)
            [n_left] = pool.counts().tolist()
            ids = pool.ids[0, :n_left].tolist()
            found = shares_of(ids, pool.logits[0, :n_left])
            # A number of candidates that is no 32-bit integer becomes 1 in llama.cpp.
            assume(sampling.mirostat != 1 or len(expected) > 1 or len(found) == 1)
            at_the_edge = set(expected) ^ set(found)
            assert len(at_the_edge) <= 1
            if at_the_edge:
                return  # what was learnt differs from now on
            assert found == pytest.approx(expected, abs=1e-3)
            sampler.feedback.learn(found[token] if sampling.mirostat else share_before(sampling, row, token))


def share_before(sampling: Sampling, row: Floats, token: int) -> float:
    """Of a token, before it was adapted."""
    others = tuple(kind for kind in sampling.samplers if kind is not SamplerKind.ADAPTIVE_P)
    pool = candidates(row.copy(), Sampler(sampling.model_copy(update={"samplers": others}), 0, Setting(N_VOCAB, N_CTX)))
    [column] = np.flatnonzero((pool.ids[0] == token) & (pool.logits[0] > -np.inf))
    return float(pool.shares()[0, column])


def run(sampler: Sampler, n: int, start: int = 0) -> list[int]:
    """Tokens that are chosen from a few rows in turn."""
    tokens: list[int] = []
    for position in range(start, start + n):
        [choice] = choose(row_of(position % 7, N_VOCAB, 2.0)[None].copy(), [sampler], [position])
        sampler.accept(choice.token)
        tokens.append(choice.token)
    return tokens


KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0, "repeat_penalty": 1.5},
    {"repeat_penalty": 1.3, "repeat_last_n": 5, "penalize_nl": False},
    {"dry_multiplier": 2.0, "dry_allowed_length": 1, "samplers": (SamplerKind.DRY, SamplerKind.TOP_K), "top_k": 5},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"mirostat": 1, "mirostat_tau": 3.0},
    {"mirostat": 2, "mirostat_tau": 3.0},
    {"samplers": (SamplerKind.MIN_P, SamplerKind.ADAPTIVE_P), "adaptive_target": 0.2},
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sampler_that_starts_again_behind_some_tokens_goes_on_as_it_would_have(kind: dict[str, Any]) -> None:
    request = Generation(sampling=Sampling(**kind))
    prompt, setting = (3, 1, 4, 1, 5, 9, 2, 6), Setting(N_VOCAB, N_CTX, newline=9)
    task = GenerateTask(SequenceKey("j", 0), prompt, request, 11)
    whole = Sampler.of(task, setting)
    tokens = run(whole, 30, len(prompt))
    first = Sampler.of(task, setting)
    assert run(first, 12, len(prompt)) == tokens[:12]
    again = Sampler.of(replace(task, produced=tuple(tokens[:12]), memory=first.memory), setting)
    assert run(again, 18, len(prompt) + 12) == tokens[12:]
    assert again.memory == whole.memory
    assert bool(whole.memory) == ("mirostat" in kind or "adaptive_target" in kind)


@pytest.mark.parametrize("kind", KINDS[-3:])
def test_what_is_remembered_matters_and_nonsense_is_not_believed(kind: dict[str, Any]) -> None:
    request = Generation(sampling=Sampling(**kind))
    task = GenerateTask(SequenceKey("j", 0), (3,), request, 11, produced=(4,))
    fresh = Sampler.of(replace(task, produced=()), Setting(N_VOCAB, N_CTX)).memory
    for nonsense in ((), (1.0,) * 5, (float("nan"),) * len(fresh), (float("inf"),) * len(fresh)):
        assert Sampler.of(replace(task, memory=nonsense), Setting(N_VOCAB, N_CTX)).memory == fresh
    other = tuple(number / 2 for number in fresh)
    assert Sampler.of(replace(task, memory=other), Setting(N_VOCAB, N_CTX)).memory == other


def test_surprise_comes_to_what_was_asked_for() -> None:
    for version in (1, 2):
        sampler = Sampler(Sampling(temperature=1.0, mirostat=version, mirostat_tau=2.0), 5, Setting(N_VOCAB, N_CTX))
        row = row_of(1, N_VOCAB, 2.0)
        surprises = []
        for position in range(300):
            pool = candidates(row.copy(), sampler, position)
            [choice] = choose(row[None].copy(), [sampler], [position])
            [column] = np.flatnonzero((pool.ids[0] == choice.token) & (pool.logits[0] > -np.inf))
            surprises.append(-np.log2(pool.shares()[0, column]))
        assert np.mean(surprises[50:]) == pytest.approx(2.0, abs=0.25)
