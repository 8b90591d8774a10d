"""Models whose state cannot lose its end: it is taken over whole or not at all, and texts are what they are alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.events import Tokens
from shared.jobs import Lane
from tests.models import BYTE_EOS
from tests.worker.engine.harness import EXACT, Recorded, config, plain_greedy, task
from worker.engine import EngineEvent, SequenceKey


@pytest.fixture(params=["recurrent_model", "sliding_model"])
def model(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def prompt(n_tokens: int, first: int = 0) -> list[int]:
    return [(first * 37 + at * 5 + at * at) % 256 for at in range(n_tokens)]


def alone(model: Path, tokens: list[int], n_predict: int) -> list[int]:
    return plain_greedy(model, tokens, n_predict, banned=[BYTE_EOS], **EXACT)


def test_the_same_prompt_by_several_at_once_and_then_again(model: Path) -> None:
    with Recorded(config(model, n_slots=8, n_batch=64, **EXACT)) as engine:
        answers = engine.run(*(task(f"same{at}", prompt(50), n_predict=20) for at in range(10)))
        answers += engine.run(*(task(f"other{at}", prompt(50, at), n_predict=20) for at in range(8)))
    expected = [alone(model, prompt(50, at), 20) for at in range(8)]
    assert [list(answer.ids) for answer in answers] == [expected[0]] * 10 + expected


def test_a_prompt_that_goes_on_from_a_whole_sequence_computes_the_rest_alone(model: Path) -> None:
    with Recorded(config(model, n_slots=4, **EXACT)) as engine:
        engine.run(task("first", prompt(60), n_predict=1))
        longer = engine.run(*(task(f"longer{at}", [*prompt(60), *prompt(20, 1 + at)], n_predict=20) for at in range(2)))
        (shorter,) = engine.run(task("shorter", prompt(40), n_predict=20))
    assert [answer.timings.prompt_n for answer in (*longer, shorter)] == [20, 20, 40]
    for at, answer in enumerate(longer):
        assert list(answer.ids) == alone(model, [*prompt(60), *prompt(20, 1 + at)], 20)
    assert list(shorter.ids) == alone(model, prompt(40), 20)


def test_bulk_gives_way_to_a_person_and_says_what_it_would_have(model: Path) -> None:
    def look(key: SequenceKey, event: EngineEvent) -> None:
        if key.job_id == "bulk" and isinstance(event, Tokens) and not submitted:
            submitted.append(key)
            engine.submit(task("person", prompt(30, 3), n_predict=20))

    submitted: list[SequenceKey] = []
    with Recorded(config(model, n_slots=1, **EXACT), look) as engine:
        bulk, person = engine.run(task("bulk", prompt(40), n_predict=60, lane=Lane.BULK)), engine.answer("person")
    assert list(bulk[0].ids) == alone(model, prompt(40), 60)
    assert list(person.ids) == alone(model, prompt(30, 3), 20)


def test_a_recurrent_state_takes_no_cells_so_that_nobody_waits_for_any(recurrent_model: Path) -> None:
    most: list[int] = []

    def look(key: SequenceKey, event: EngineEvent) -> None:
        most.append(sum(slot.is_processing for slot in engine.engine.snapshot().slots))

    with Recorded(config(recurrent_model, n_ctx=256, n_ctx_slot=250, **EXACT), look) as engine:
        answers = engine.run(*(task(f"job{at}", prompt(150, at), n_predict=90) for at in range(4)))
    assert max(most) == 4
    for at, answer in enumerate(answers):
        assert list(answer.ids) == alone(recurrent_model, prompt(150, at), 90)
