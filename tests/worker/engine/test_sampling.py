import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.jobs import Generation, Sampling
from worker.engine.sampling import NO_TOKEN, Floats, Sampler, Setting, candidates, choose, uniforms
from worker.engine.task import GenerateTask, SequenceKey

TOLERANCE = 2e-4


def chosen(logits: Floats, samplers: Sequence[Sampler], positions: Sequence[int]) -> list[int]:
    return [choice.token for choice in choose(logits, samplers, positions)]


def sampler(n_vocab: int, *, seed: int = 0, eog: frozenset[int] = frozenset(), **more: Any) -> Sampler:
    return Sampler(Sampling(**more), seed, n_vocab=n_vocab, eog=eog)


def native(row: Floats, sampling: Sampling, last: list[int]) -> dict[int, float]:
    """What llama.cpp's own chain leaves of a row: id -> probability."""
    n = len(row)
    data = (llama_cpp.llama_token_data * n)()
    for token, logit in enumerate(row):
        data[token].id, data[token].logit = token, logit
    array = llama_cpp.llama_token_data_array(data=data, size=n, selected=-1, sorted=False)
    penalties = llama_cpp.llama_sampler_init_penalties(
        n,
        len(last) if sampling.repeat_last_n < 0 else sampling.repeat_last_n,
        sampling.repeat_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    )
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    try:
        for part in (
            penalties,
            llama_cpp.llama_sampler_init_top_k(sampling.top_k),
            llama_cpp.llama_sampler_init_typical(sampling.typical_p, sampling.min_keep),
            llama_cpp.llama_sampler_init_top_p(sampling.top_p, sampling.min_keep),
            llama_cpp.llama_sampler_init_min_p(sampling.min_p, sampling.min_keep),
            llama_cpp.llama_sampler_init_temp(sampling.temperature),
        ):
            llama_cpp.llama_sampler_chain_add(chain, part)
        for token in last:
            llama_cpp.llama_sampler_accept(chain, token)
        llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
        left = {array.data[i].id: array.data[i].logit for i in range(array.size)}
    finally:
        llama_cpp.llama_sampler_free(chain)
    return _shares({token: logit for token, logit in left.items() if logit > -1e30})


def ours(row: Floats, sampling: Sampling, last: list[int]) -> dict[int, float]:
    row = row.copy()
    chooser = Sampler(sampling, 0, n_vocab=len(row))
    for token in last:
        chooser.accept(token)
    chooser.shape(row)
    found = candidates(row, chooser)
    pairs = zip(found.ids[0].tolist(), found.logits[0].tolist(), strict=True)
    return _shares({token: logit for token, logit in pairs if logit > -np.inf})


def _shares(logits: dict[int, float]) -> dict[int, float]:
    largest = max(logits.values())
    weights = {token: float(np.exp(logit - largest)) for token, logit in logits.items()}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([-1, 0, 1, 2, 40, 300, 100_000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    typical_p=st.sampled_from([1.0, 1.0, 0.2, 0.9]),
    min_keep=st.sampled_from([0, 0, 1, 5, 60]),
    repeat_last_n=st.sampled_from([0, 3, 64, -1]),
    repeat_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.2, -0.3]),
)


@settings(max_examples=400, deadline=None)
@given(
    sampling=samplings,
    seed=st.integers(0, 2**32 - 1),
    n_vocab=st.sampled_from([3, 50, 300, 4099, 8192]),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
)
def test_the_chain_leaves_what_llama_cpp_leaves(sampling: Sampling, seed: int, n_vocab: int, spread: float) -> None:
    # In an almost flat row thousands of tokens are as typical as each other to the last bits of a 32-bit sum.
    assume(sampling.typical_p >= 1.0 or spread >= 1.0)
    random = np.random.default_rng(seed)
    row = (random.standard_normal(n_vocab) * spread).astype(np.float32)
    last = random.integers(0, n_vocab, 12).tolist()
    expected, found = native(row, sampling, last), ours(row, sampling, last)
    # A sum that meets a bound to the last bit may fall to either side, which moves the cut by one token; and two
    # tokens may be as typical as each other, one likelier and one less likely.
    at_the_edge = set(expected) ^ set(found)
    assert len(at_the_edge) <= (2 if sampling.typical_p < 1.0 else 1)
    if not at_the_edge:
        assert found == pytest.approx(expected, abs=TOLERANCE)


def test_a_row_is_cut_alike_alone_and_among_others() -> None:
    random = np.random.default_rng(3)
    logits = (random.standard_normal((6, 5000)) * 3).astype(np.float32)
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"top_k": 0},
        {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"typical_p": 0.5},
        {"top_k": 3000},
    ]
    samplers = [sampler(5000, seed=index, **kind) for index, kind in enumerate(kinds)]
    together = chosen(logits.copy(), samplers, range(6))
    alone = [chosen(logits[index : index + 1].copy(), samplers[index : index + 1], [index])[0] for index in range(6)]
    assert together == alone


@pytest.mark.parametrize("kind", [{}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}])
def test_tokens_come_as_often_as_they_should(kind: dict[str, Any]) -> None:
    row = np.log(np.array([[0.5, 0.3, 0.2]], dtype=np.float32))
    options = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0} | kind
    chooser = sampler(3, seed=9, **options)
    n = 4000
    counts = np.bincount([chosen(row.copy(), [chooser], [position])[0] for position in range(n)], minlength=3)
    assert counts / n == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    numbers = uniforms([7, 7, 8, 0, 2**32 - 1], [0, 1, 0, 0, 8191])
    assert numbers.tolist() == uniforms([7, 7, 8, 0, 2**32 - 1], [0, 1, 0, 0, 8191]).tolist()
    assert len(set(numbers.tolist())) == 5
    assert uniforms([8], [0])[0] == numbers[2]


def test_draws_are_uniform_along_positions_and_along_seeds() -> None:
    for numbers in (uniforms([5] * 20_000, range(20_000)), uniforms(range(20_000), [5] * 20_000)):
        assert ((numbers >= 0) & (numbers < 1)).all()
        counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
        assert counts.min() > 850
        assert counts.max() < 1150
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_a_bias_bans_forces_and_adds_up() -> None:
    logits = np.array([[1.0, 2.0, 3.0, 4.0]], dtype=np.float32)
    banned = sampler(4, temperature=0, logit_bias=((3, None), (2, -5.0), (1, 1.0), (1, 1.0), (99, 50.0), (-1, 50.0)))
    assert chosen(logits.copy(), [banned], [0]) == [1]
    assert chosen(logits.copy(), [sampler(4, temperature=0, logit_bias=((0, 100.0),))], [0]) == [0]


def test_ignore_eos_bans_every_end_of_generation() -> None:
    logits = np.array([[1.0, 2.0, 3.0, 4.0]], dtype=np.float32)
    assert chosen(logits.copy(), [sampler(4, temperature=0, ignore_eos=True, eog=frozenset({2, 3}))], [0]) == [1]


@pytest.mark.parametrize("kind", [{"temperature": 0.0}, {}, {"top_k": 0}, {"top_k": 0, "top_p": 1, "min_p": 0}])
def test_a_row_without_choice_says_so(kind: dict[str, Any]) -> None:
    impossible = np.full((1, 8), -np.inf, dtype=np.float32)
    assert chosen(impossible, [sampler(8, **kind)], [0]) == [NO_TOKEN]
    assert chosen(np.full((1, 8), np.nan, dtype=np.float32), [sampler(8, **kind)], [0]) == [NO_TOKEN]


class Only:
    """A constraint: each list of tokens once, in their order, and then nothing but an end."""

    def __init__(self, *allowed: list[int], end: int) -> None:
        self._allowed = [*allowed]
        self._end = end
        self.accepted: list[int] = []

    @property
    def is_over(self) -> bool:
        return not self._allowed

    @property
    def failure(self) -> None:
        return None

    def mask(self, row: Floats) -> None:
        allowed = self._allowed[0] if self._allowed else [self._end]
        row[np.setdiff1d(np.arange(len(row)), allowed)] = -np.inf

    def accept(self, token: int) -> None:
        self.accepted.append(token)
        self._allowed = self._allowed[1:]


def test_a_constraint_sees_what_was_chosen_and_has_the_last_word() -> None:
    logits = np.array([[1.0, 2.0, 3.0, 4.0]], dtype=np.float32)
    only = Only([0, 1], [1, 2], end=3)
    task = GenerateTask(
        SequenceKey("j", 0), (2, 2), Generation(sampling=Sampling(temperature=0, ignore_eos=True)), 1, produced=(0,)
    )
    chooser = Sampler.of(task, Setting(4, 64, eog=frozenset({3})), only)
    assert only.accepted == [0]
    assert chosen(logits.copy(), [chooser], [3]) == [2]
    chooser.accept(2)
    assert chosen(logits.copy(), [chooser], [4]) == [3], "an end, though ends are ignored: nothing else is allowed"


def test_penalties_forget_what_left_the_window() -> None:
    logits = np.array([[2.0, 1.9, 0.0]], dtype=np.float32)
    chooser = sampler(3, temperature=0, repeat_last_n=2, presence_penalty=1.0)
    chooser.accept(0)
    assert chosen(logits.copy(), [chooser], [0]) == [1]
    for token in (2, 2):
        chooser.accept(token)
    assert chosen(logits.copy(), [chooser], [0]) == [0]
