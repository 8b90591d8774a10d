import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from shared.jobs import SamplerKind, Sampling
from tests.worker.engine.sampling.native import NativeChain, shares_of
from tests.worker.engine.sampling.parts import row_of, samplings
from worker.engine.sampling import Floats, Pool, Sampler, Setting, candidates

N_CTX = 64
TOLERANCE = 2e-4
IMPOSSIBLE = 1e-9
"""llama.cpp calls a token possible until its probability is no 32-bit float above zero."""

T = SamplerKind.TEMPERATURE


def probable(shares: dict[int, float]) -> dict[int, float]:
    return {token: share for token, share in shares.items() if share > IMPOSSIBLE}


def left_by(sampler: Sampler, row: Floats) -> dict[int, float]:
    """Probability by id of what a sampler leaves of a row."""
    pool = candidates(row.copy(), sampler)
    [n_left] = pool.counts().tolist()
    ids, logits = pool.ids[0, :n_left], pool.logits[0, :n_left]
    assert (np.diff(logits) <= 0).all(), "candidates are in order, and are numbers"
    assert len(set(ids.tolist())) == n_left
    return probable(shares_of(ids.tolist(), logits))


def is_off_the_rails(sampling: Sampling, spread: float) -> bool:
    """Where llama.cpp itself computes with what is no number, or is a matter of the last bits of a 32-bit sum.

    A candidate of probability 0 makes the entropy NaN in which typical sampling sorts; and in an almost flat row
    thousands of tokens are as typical as each other.
    """
    steps = sampling.samplers
    if SamplerKind.TYPICAL_P not in steps or sampling.typical_p >= 1:
        return False
    before = steps[: steps.index(SamplerKind.TYPICAL_P)]
    return spread != 1 or T in before or (SamplerKind.TOP_N_SIGMA in before and sampling.top_n_sigma > 0)


@settings(max_examples=150, deadline=None)
@given(
    sampling=samplings,
    seed=st.integers(0, 2**32 - 1),
    n_vocab=st.sampled_from([3, 50, 300, 4099, 8192]),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
)
@example(sampling=Sampling(), seed=1, n_vocab=8192, spread=4.0)
@example(sampling=Sampling(top_k=0, min_p=0.0), seed=1, n_vocab=8192, spread=1.0)
def test_the_chain_leaves_what_llama_cpp_leaves(sampling: Sampling, seed: int, n_vocab: int, spread: float) -> None:
    assume(not is_off_the_rails(sampling, spread))
    row = row_of(seed, n_vocab, spread)
    last = np.random.default_rng(seed).integers(0, n_vocab, 12).tolist()
    sampler = Sampler(sampling, 0, Setting(n_vocab, N_CTX))
    for token in last:
        sampler.accept(token)
    with NativeChain(sampling, n_vocab, N_CTX) as chain:
        chain.accept(last)
        expected = probable(chain.apply(row).shares)
    found = left_by(sampler, row)
    # A sum that meets a bound to the last bit may fall to either side, which moves the cut by one token; and two
    # tokens may be as typical as each other, one likelier and one less likely.
    at_the_edge = set(expected) ^ set(found)
    assert len(at_the_edge) <= (2 if sampling.typical_p < 1.0 else 1)
    if not at_the_edge:
        assert found == pytest.approx(expected, abs=TOLERANCE)


def tail_free(probabilities: list[float], z: float, min_keep: int) -> int:
    """How many candidates llama.cpp of May 2024 keeps of these, which fall: its loop, as it was."""
    if z >= 1 or len(probabilities) <= 2:
        return len(probabilities)
    first = [probabilities[i] - probabilities[i + 1] for i in range(len(probabilities) - 1)]
    second = [abs(first[i] - first[i + 1]) for i in range(len(first) - 1)]
    total = sum(second)
    second = [each / total for each in second] if total > 1e-6 else [1 / len(second)] * len(second)
    sum_so_far = 0.0
    for i, each in enumerate(second):
        sum_so_far += each
        if sum_so_far > z and i >= max(min_keep, 1):
            return i
    return len(probabilities)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_vocab=st.sampled_from([1, 2, 3, 50, 300]),
    spread=st.sampled_from([0.0, 1.0, 4.0]),
    z=st.sampled_from([-1.0, 0.0, 0.3, 0.9, 0.999]),
    min_keep=st.sampled_from([0, 2, 40]),
)
def test_tail_free_sampling_cuts_where_the_curve_has_bent(
    seed: int, n_vocab: int, spread: float, z: float, min_keep: int
) -> None:
    row = row_of(seed, n_vocab, spread)
    sampler = Sampler(
        Sampling(samplers=(SamplerKind.TAIL_FREE,), tfs_z=z, min_keep=min_keep), 0, Setting(n_vocab, N_CTX)
    )
    pool = candidates(row.copy(), sampler)
    falling = np.sort(row.astype(np.float64))[::-1]
    weights = np.exp(falling - falling[0])
    n_kept = tail_free((weights / weights.sum()).tolist(), z, min_keep)
    assert abs(int(pool.counts()[0]) - n_kept) <= (0 if spread else 1)


def pool_of(sampling: Sampling, row: list[float]) -> Pool:
    return candidates(np.array(row, dtype=np.float32), Sampler(sampling, 3, Setting(len(row), N_CTX)))


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(samplers=(SamplerKind.TOP_K,), top_k=2), [2, 0]),
        (Sampling(samplers=(SamplerKind.TOP_K,), top_k=-5), [2, 0, 1, 3]),
        (Sampling(samplers=(SamplerKind.TOP_K,), top_k=10**6), [2, 0, 1, 3]),
        (Sampling(samplers=(SamplerKind.TOP_P,), top_p=0.0), [2]),
        (Sampling(samplers=(SamplerKind.MIN_P,), min_p=2.0), [2]),
        (Sampling(samplers=(SamplerKind.TYPICAL_P,), typical_p=0.0, min_keep=10), [2, 0, 1, 3]),
        (Sampling(samplers=(SamplerKind.TOP_K,), top_k=1, temperature=0.0), [2]),
        (Sampling(samplers=(), top_k=1, temperature=0.0), [2, 0, 1, 3]),
        (Sampling(samplers=(T, SamplerKind.TOP_P), temperature=0.0), [2]),
    ],
)
def test_a_step_that_is_off_or_not_named_keeps_all(sampling: Sampling, kept: list[int]) -> None:
    pool = pool_of(sampling, [2.0, 1.0, 3.0, 1.0])
    assert pool.ids[0][: int(pool.counts()[0])].tolist() == kept


def test_what_is_excluded_by_chance_is_excluded_that_often() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    sampler = Sampler(Sampling(xtc_probability=0.3, xtc_threshold=0.15), 7, Setting(4, N_CTX))
    left = [int(candidates(row.copy(), sampler, position).ids[0, 0]) for position in range(600)]
    assert set(left) == {0, 2}, "of the likely ones the least likely is left"
    assert left.count(2) / 600 == pytest.approx(0.3, abs=0.06)
