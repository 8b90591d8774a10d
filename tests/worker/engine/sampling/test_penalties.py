import numpy as np
import pytest

from shared.jobs import Generation, Sampling
from worker.engine.sampling import Sampler, Setting, choose
from worker.engine.sampling.penalties import Penalties, Rates
from worker.engine.task import GenerateTask, SequenceKey

ROW = np.array([2.0, 1.9, 0.0, -1.0], dtype=np.float32)


def reshaped(penalties: Penalties) -> list[float]:
    row = ROW.copy()
    ids = penalties.touched()
    row[ids] = penalties.reshape(ids, row[ids])
    return [round(logit, 3) for logit in row.tolist()]


def test_repeating_divides_above_zero_and_multiplies_below() -> None:
    penalties = Penalties(Rates(2.0, 0.0, 0.0), 64)
    penalties.replay([0, 3, 3])
    assert reshaped(penalties) == [1.0, 1.9, 0.0, -2.0]


def test_frequency_counts_and_presence_does_not() -> None:
    penalties = Penalties(Rates(1.0, 0.25, 0.5), 64)
    penalties.replay([0, 1, 1])
    assert reshaped(penalties) == [1.25, 0.9, 0.0, -1.0]


def test_what_left_the_window_is_forgotten() -> None:
    penalties = Penalties(Rates(1.0, 0.0, 1.0), 2)
    penalties.replay([0, 1, 2])
    assert reshaped(penalties) == [2.0, 0.9, -1.0, -1.0]
    penalties.push(2)
    assert reshaped(penalties) == [2.0, 1.9, -1.0, -1.0]


def first_choice(*, prompt: tuple[int, ...] = (), penalized: tuple[int, ...] | None = None, **more: object) -> int:
    options = {"temperature": 0.0, "presence_penalty": 1.0} | more
    request = Generation(sampling=Sampling.model_validate(options))
    task = GenerateTask(SequenceKey("j", 0), prompt, request, 1, penalized=penalized)
    sampler = Sampler.of(task, Setting(n_vocab=4, n_ctx=3, newline=0))
    return choose(ROW[None].copy(), [sampler], [len(prompt)])[0].token


@pytest.mark.parametrize(
    ("n_last", "prompt", "token"),
    [(64, (0, 2), 1), (0, (0, 2), 0), (1, (0, 2), 0), (2, (0, 2), 1), (-1, (0, 2, 2), 1), (-1, (0, 2, 2, 2), 0)],
)
def test_the_window_looks_back_into_the_prompt_as_far_as_asked(
    n_last: int, prompt: tuple[int, ...], token: int
) -> None:
    assert first_choice(prompt=prompt, repeat_last_n=n_last) == token, "-1 is the context, of 3 here"


def test_other_tokens_can_be_penalized_than_those_of_the_prompt() -> None:
    assert first_choice(prompt=(0,), penalized=()) == 0
    assert first_choice(prompt=(1,), penalized=(0,)) == 1


def test_line_breaks_can_be_exempt() -> None:
    assert first_choice(prompt=(0,)) == 1
    assert first_choice(prompt=(0,), penalize_nl=False) == 0
