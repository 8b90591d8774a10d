"""A shared prefix is computed once, for any number of slots and jobs, in whatever order they come."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from shared.events import Answer
from shared.jobs import Lane
from tests.models import BYTE_EOS
from tests.worker.engine.harness import EXACT, Recorded, config, plain_greedy, task
from worker.engine import GenerateTask, SequenceKey, admission
from worker.engine.admission import MOST_PASSED

N_SHARED, N_OWN = 512, 32
MOST_COMPUTED = 1.1
"""Times the prompt tokens that nobody could share."""


def groups(n_groups: int, n_requests: int, **more: Any) -> list[GenerateTask]:
    """Requests of each group share a beginning; all are shuffled."""
    dice = random.Random(n_groups)
    beginnings = [[dice.randrange(256) for _ in range(N_SHARED)] for _ in range(n_groups)]
    tasks = [
        task(f"{group}-{at}", beginning + [dice.randrange(256) for _ in range(N_OWN)], n_predict=8, **more)
        for group, beginning in enumerate(beginnings)
        for at in range(n_requests)
    ]
    dice.shuffle(tasks)
    return tasks


def computed(answers: list[Answer], n_groups: int) -> float:
    """Prompt tokens that were computed, by those that had to be."""
    ideal = n_groups * N_SHARED + len(answers) * N_OWN
    return sum(answer.timings.prompt_n for answer in answers) / ideal


@pytest.mark.parametrize(
    ("n_groups", "n_requests", "lane"),
    [
        (4, 8, Lane.BULK),
        (4, 8, Lane.INTERACTIVE),
        (12, 6, Lane.BULK),  # 8192 cells have room for all prefixes, but not for all that came of them
    ],
)
def test_shuffled_requests_of_some_groups_compute_each_prefix_once(
    byte_model: Path, n_groups: int, n_requests: int, lane: Lane
) -> None:
    with Recorded(config(byte_model, n_slots=8, n_ctx=8192)) as engine:
        answers = engine.run(*groups(n_groups, n_requests, lane=lane))
    assert computed(answers, n_groups) <= MOST_COMPUTED


def test_with_room_for_a_third_of_the_prefixes_bulk_starts_those_first_that_are_there(
    byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = 8  # as many as a worker holds in its slots and beyond them
    tasks = groups(8, 4, lane=Lane.BULK)
    ratios = []
    for most_passed in (MOST_PASSED, 0):
        monkeypatch.setattr(admission, "MOST_PASSED", most_passed)
        waiting = [task(each.key.job_id, each.prompt, n_predict=8, lane=Lane.BULK) for each in tasks]

        def refill(key: SequenceKey, event: object, waiting: list[GenerateTask] = waiting) -> None:
            if isinstance(event, Answer) and waiting:
                engine.submit(waiting.pop())

        with Recorded(config(byte_model, n_slots=4, n_ctx=2048, n_ctx_slot=1024), refill) as engine:
            engine.submit(*(waiting.pop() for _ in range(window)))
            ratios.append(computed([engine.answer(each.key.job_id) for each in tasks], 8))
    assert ratios[0] < 0.9 * ratios[1]


def test_the_choices_of_one_job_share_their_prompt(byte_model: Path) -> None:
    prompt = list(b"Several answers to one question, each drawn by itself. " * 8)
    one = task("job", prompt, n_predict=20)
    choices = [GenerateTask(SequenceKey("job", index), one.prompt, one.request, index) for index in range(5)]
    with Recorded(config(byte_model, n_slots=4, n_batch=64, **EXACT)) as engine:
        engine.submit(*choices)
        engine.wait_for(lambda: len([each for each in engine._events["job"] if isinstance(each, Answer)]) == 5)
        answers = [each for each in engine.events("job") if isinstance(each, Answer)]
        assert engine.engine.snapshot().work.n_prompt_tokens == len(prompt) + 4
    assert sorted(answer.index for answer in answers) == list(range(5))
    assert sorted(answer.timings.prompt_n for answer in answers) == [1, 1, 1, 1, len(prompt)]
    expected = plain_greedy(byte_model, prompt, 20, banned=[BYTE_EOS], **EXACT)
    assert [list(answer.ids) for answer in answers] == [expected] * 5


def test_who_wants_nothing_of_others_computes_all_and_lends_it(byte_model: Path) -> None:
    prompt = list(b"Nothing but what is mine. " * 8)
    with Recorded(config(byte_model)) as engine:
        answers = engine.run(*(task(f"own{at}", prompt, cache_prompt=False) for at in range(3)))
        (later,) = engine.run(task("later", prompt))
    assert [answer.timings.prompt_n for answer in answers] == [len(prompt)] * 3
    assert later.timings.prompt_n == 1
