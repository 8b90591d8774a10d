import math

import numpy as np
import pytest

from shared.jobs import Generation, SamplerKind, Sampling
from worker.engine.sampling import Bias, Sampler, Scores, Setting, choose
from worker.engine.sampling.scores import Odds
from worker.engine.task import GenerateTask, SequenceKey

ROW = [1.0, 0.5, 0.3, 0.1]


def odds_of(row: list[float], n_likeliest: int) -> Odds:
    return Odds.of(np.array(row, dtype=np.float32), n_likeliest)


def scores(
    row: list[float],
    n_probs: int,
    *,
    is_post: bool = False,
    biases: tuple[tuple[int, float | None], ...] = (),
    **sampling: object,
) -> Scores:
    request = Generation(
        n_probs=n_probs, has_logprobs=True, post_sampling_probs=is_post, sampling=Sampling.model_validate(sampling)
    )
    task = GenerateTask(SequenceKey("j", 0), (1,), request, 1, biases=Bias.of(biases))
    [choice] = choose(np.array([row], dtype=np.float32), [Sampler.of(task, Setting(len(row), 64))], [1])
    assert choice.scores is not None
    return choice.scores


@pytest.mark.parametrize(
    "row", [[1.0, 2.0, 3.0], [10.0, 0.0, -10.0], [5.0] * 4, [500.0, 499, 498], [-500.0, -499, -498]]
)
def test_probabilities_of_all_tokens_come_to_one(row: list[float]) -> None:
    assert sum(math.exp(odds_of(row, 0).scores(token).logprob) for token in range(len(row))) == pytest.approx(
        1, abs=1e-5
    )


def test_the_likeliest_come_first_and_are_as_many_as_asked_for() -> None:
    found = odds_of([2.0, 5.0, 1.0, 4.0, 3.0], 5).scores(0)
    assert found.ids.tolist() == [1, 3, 4, 0, 2]
    assert (np.diff(found.logprobs) < 0).all()
    assert found.logprobs[3] == pytest.approx(found.logprob)
    assert odds_of(ROW, 3).scores(0).ids.tolist() == [0, 1, 2]
    assert odds_of([1000.0, 999.0, 998.0], 3).scores(0).logprobs.tolist() == pytest.approx(
        [-0.4076, -1.4076, -2.4076], abs=1e-4
    )
    assert math.exp(odds_of([7.0] * 4, 0).scores(2).logprob) == pytest.approx(0.25, abs=1e-6)


def test_none_asked_for_leaves_the_token_s_own() -> None:
    for is_post in (False, True):
        found = scores(ROW, 0, is_post=is_post, temperature=0.0)
        assert found.ids.tolist() == found.logprobs.tolist() == []
        assert math.isfinite(found.logprob)


def test_more_than_there_are_are_all() -> None:
    assert scores(ROW, 60_000).ids.tolist() == [0, 1, 2, 3]
    assert len(scores([0.0] * 5000, 60_000).ids) == 5000


def test_before_sampling_neither_temperature_nor_bans_nor_penalties_count() -> None:
    expected = odds_of(ROW, 4)
    for sampling in (
        {"temperature": 0.0},
        {"temperature": 9.0},
        {"top_k": 1},
        {"repeat_penalty": 5.0, "temperature": 0},
    ):
        found = scores(ROW, 4, biases=((0, None),), **sampling)
        assert found.logprobs.tolist() == pytest.approx(expected.scores(0).logprobs.tolist())
        assert found.ids.tolist() == [0, 1, 2, 3]
        assert found.logprob in found.logprobs.tolist()[1:], "of a token that was not banned"


@pytest.mark.parametrize("top_k", [3, 0])
def test_behind_the_chain_what_fell_is_left_out_and_the_rest_comes_to_one(top_k: int) -> None:
    sampling = {"top_k": top_k, "top_p": 1.0, "min_p": 0.0, "temperature": 0.5}
    found = scores(ROW, 10, is_post=True, biases=((2, None),), **sampling)
    assert found.ids.tolist() == [0, 1, 3]
    assert np.exp(found.logprobs).sum() == pytest.approx(1, abs=1e-5)
    assert found.logprobs[0] - found.logprobs[1] == pytest.approx(0.5 / 0.5, abs=1e-5)
    assert found.logprob in found.logprobs.tolist()


def test_behind_a_greedy_chain_one_token_is_certain() -> None:
    found = scores(ROW, 3, is_post=True, temperature=0.0)
    assert (found.logprob, found.ids.tolist(), found.logprobs.tolist()) == (0.0, [0], [0.0])
    adapted = scores(ROW, 4, is_post=True, samplers=(SamplerKind.ADAPTIVE_P,), adaptive_target=0.2, temperature=1.0)
    assert adapted.ids.tolist()[-1] == 0, "the likeliest is the farthest from the target"


def test_all_is_finite() -> None:
    row = np.array([0.0, -np.inf, -1e30, 1e30], dtype=np.float32)
    odds = Odds.of(row, 4)
    for token in range(4):
        found = odds.scores(token)
        assert np.isfinite([found.logprob, *found.logprobs]).all()
    assert odds.scores(1).logprob == -9999.0
