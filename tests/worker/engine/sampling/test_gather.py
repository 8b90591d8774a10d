import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.jobs import Sampling
from tests.worker.engine.sampling.parts import samplings
from worker.engine.sampling import Pool, Sampler, Setting, candidates
from worker.engine.sampling.noise import Noise
from worker.engine.sampling.pool import Floats, by_chunks, can_chunk, likeliest, whole
from worker.engine.sampling.steps import take_row_step, take_step

SIZES = [4096, 5000, 6143]


def rows_of(seed: int, n_vocab: int, n_levels: int) -> Floats:
    """With many equal logits, and bans."""
    random = np.random.default_rng(seed)
    row = (random.integers(0, n_levels, n_vocab) / n_levels * random.choice([1, 10])).astype(np.float32)
    row[random.integers(0, n_vocab, random.choice([0, 10, n_vocab]))] = -np.inf
    return row


def by_hand(row: Floats, sampler: Sampler) -> Pool:
    """The chain on a row that was sorted as a whole."""
    for kind in sampler.chain.row_steps:
        take_row_step(kind, row, sampler)
    pool = Pool.of([whole(row)], len(row))
    for kind in sampler.chain.pool_steps:
        take_step(kind, pool, [sampler], Noise.at([0], [0]))
    return pool


@settings(max_examples=100, deadline=None)
@given(
    sampling=samplings,
    seed=st.integers(0, 2**32 - 1),
    n_vocab=st.sampled_from(SIZES),
    n_levels=st.sampled_from([1, 7, 200, 10**6]),
)
def test_what_is_gathered_is_all_that_the_chain_would_leave(
    sampling: Sampling, seed: int, n_vocab: int, n_levels: int
) -> None:
    row = rows_of(seed, n_vocab, n_levels)
    sampler = Sampler(sampling, 0, Setting(n_vocab, 64))
    with np.errstate(all="ignore"):
        found, expected = candidates(row.copy(), sampler), by_hand(row.copy(), sampler)
    [n_left] = expected.counts().tolist()
    assert found.counts().tolist() == [n_left]
    assert found.ids[0, :n_left].tolist() == expected.ids[0, :n_left].tolist()
    assert found.logits[0, :n_left].tolist() == expected.logits[0, :n_left].tolist()


@pytest.mark.parametrize("n_vocab", [3, 1023, *SIZES])
@pytest.mark.parametrize("k", [1, 40, 256, 257, 3000, 10**6])
@pytest.mark.parametrize("n_levels", [1, 7, 10**6])
def test_the_likeliest_are_those_of_a_sort_and_of_equal_ones_the_first(n_vocab: int, k: int, n_levels: int) -> None:
    row = rows_of(1, n_vocab, n_levels)
    order = np.argsort(-row, kind="stable")
    expected = order[row[order] > -np.inf][:k]
    found = likeliest(row, k)
    assert found.ids.tolist() == expected.tolist()
    assert found.logits.tolist() == row[expected].tolist()
    assert can_chunk(n_vocab, k) == (n_vocab >= 4096 and k <= 256)


@pytest.mark.parametrize("n_vocab", SIZES)
def test_rows_side_by_side_keep_to_their_own_logits(n_vocab: int) -> None:
    row = rows_of(1, n_vocab, 10**6)
    logits = np.stack([row, row + 100, row])
    for rows in ([0, 1, 2], [0, 2]):
        pool = by_chunks(logits, rows, [40] * len(rows))
        for index, each in enumerate(rows):
            assert pool.ids[index].tolist() == likeliest(logits[each], 40).ids.tolist()
            assert pool.logits[index].tolist() == likeliest(logits[each], 40).logits.tolist()
