import numpy as np
import pytest

from worker.engine.sampling.noise import Noise, Stream
from worker.engine.sampling.pool import NO_TOKEN, Floats

FLAT = np.zeros(8192, dtype=np.float32)


def uniforms(seeds: list[int], positions: list[int], stream: Stream = Stream.EXCLUSION) -> list[float]:
    return Noise.at(seeds, positions).uniforms(stream).tolist()


def test_a_number_depends_on_seed_position_and_use_alone() -> None:
    seeds, positions = [7, 7, 8, 0, 2**32 - 1], [0, 1, 0, 0, 8191]
    numbers = uniforms(seeds, positions)
    assert numbers == uniforms(seeds, positions)
    assert len({*numbers, *uniforms(seeds, positions, Stream.TOKEN)}) == 10
    assert uniforms([8], [0]) == [numbers[2]]


def test_numbers_are_uniform_along_positions_and_along_seeds() -> None:
    n = 20_000
    for numbers in (uniforms([5] * n, [*range(n)]), uniforms([*range(n)], [5] * n)):
        assert 0 <= min(numbers) < max(numbers) < 1
        counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
        assert counts.min() > 850
        assert counts.max() < 1150
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_a_token_is_the_same_from_a_whole_row_and_from_its_candidates() -> None:
    random = np.random.default_rng(1)
    for position in range(50):
        row = (random.standard_normal(3000) * 3).astype(np.float32)
        row[random.integers(0, 3000, 1000)] = -np.inf
        noise = Noise.at([3], [position])
        ids = random.permutation(3000)
        [column] = noise.choose(ids[None], row[ids][None]).tolist()
        assert ids[column] == noise.choose_from_all(0, row)


@pytest.mark.parametrize("row", [np.full(8, -np.inf), np.full(8, np.nan), np.array([0.0, np.inf, 1.0, np.nan])])
def test_where_nothing_can_be_chosen_nothing_is(row: Floats) -> None:
    row = row.astype(np.float32)
    noise = Noise.at([3], [0])
    assert noise.choose_from_all(0, row) == NO_TOKEN
    assert noise.choose(np.arange(len(row))[None], row[None]).tolist() == [NO_TOKEN]


def test_equally_likely_tokens_come_equally_often_and_without_order() -> None:
    n = 4000
    noise = Noise.at([11] * n, [*range(n)])
    tokens = np.array([noise.choose_from_all(index, FLAT) for index in range(0, n, 4)])
    counts = np.histogram(tokens, bins=16, range=(0, len(FLAT)))[0]
    assert counts.min() > 35
    assert counts.max() < 95
    assert len(set(tokens.tolist())) > 910
    assert abs(np.corrcoef(tokens[:-1], tokens[1:])[0, 1]) < 0.1
    few = noise.choose(np.tile(np.arange(4), (n, 1)), np.zeros((n, 4), dtype=np.float32))
    assert np.bincount(few).tolist() == pytest.approx([1000] * 4, abs=100)
    pairs = np.bincount(few[:-1] * 4 + few[1:], minlength=16)
    assert pairs.tolist() == pytest.approx([250] * 16, abs=60), "what came before says nothing of what comes"
