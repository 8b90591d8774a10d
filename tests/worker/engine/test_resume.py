"""A task that another engine began goes on at the next token."""

from dataclasses import replace
from pathlib import Path

import pytest

from shared.events import Answer, StopType, Tokens
from shared.jobs import Sampling
from tests.models import BYTE_EOS
from tests.worker.engine.harness import Recorded, config, task
from worker.engine import GenerateTask

PROMPT = list(b"Whoever reads the log goes on where it ended.")
WILD = Sampling(temperature=1.5, top_k=0, min_p=0.0, repeat_penalty=1.2, ignore_eos=True)


def whole(engine: Recorded, began: GenerateTask) -> tuple[Answer, list[Tokens]]:
    answer = engine.run(began)[0]
    return answer, engine.tokens(began.key.job_id)


def resumed(engine: Recorded, began: GenerateTask, logged: list[Tokens], name: str) -> tuple[Answer, str]:
    """The answer of a continuation, and the text that a reader of both attempts has seen."""
    produced = tuple(token for event in logged for token in event.ids)
    again = replace(began, key=began.key._replace(job_id=name), produced=produced)
    answer = engine.run(again)[0]
    return answer, "".join(event.text for event in logged) + engine.streamed(name)


def test_a_text_cut_after_any_event_and_resumed_is_the_uncut_one(byte_model: Path) -> None:
    with Recorded(config(byte_model)) as engine:
        began = task("whole", PROMPT, n_predict=40, sampling=WILD, seed=11)
        answer, events = whole(engine, began)
        for n_logged in range(len(events) + 1):
            again, text = resumed(engine, began, events[:n_logged], f"cut{n_logged}")
            assert again.ids == answer.ids
            assert again.text == text == answer.text
            assert again.stop_type is answer.stop_type
            assert again.timings.predicted_n == 40
            assert again.timings.prompt_n + again.timings.cache_n == again.prompt_tokens == len(PROMPT)


def test_a_stop_that_began_before_the_cut_is_found_after_it(byte_model: Path) -> None:
    with Recorded(config(byte_model)) as engine:
        free, _ = whole(engine, task("free", PROMPT, n_predict=40, sampling=WILD, seed=12))
        stop = free.text[24:30]
        began = task("whole", PROMPT, n_predict=40, sampling=WILD, seed=12, stop=(stop, free.text[10:13] + "no"))
        answer, events = whole(engine, began)
        assert answer.stop_type is StopType.WORD
        for n_logged in range(len(events) + 1):
            again, text = resumed(engine, began, events[:n_logged], f"cut{n_logged}")
            assert again.text == text == answer.text
            assert (again.stop_type, again.stopping_word) == (StopType.WORD, stop)


@pytest.mark.parametrize("reuses", [True, False])
def test_another_engine_goes_on_as_well(byte_model: Path, reuses: bool) -> None:
    began = task("whole", PROMPT, n_predict=30, sampling=WILD, seed=13, cache_prompt=reuses)
    with Recorded(config(byte_model)) as first:
        answer, events = whole(first, began)
    with Recorded(config(byte_model, n_slots=2, n_batch=16)) as second:
        again, text = resumed(second, began, events[:9], "resumed")
    assert again.text == text == answer.text


def test_an_attempt_that_only_missed_its_ending_says_nothing_again(byte_model: Path) -> None:
    force_end = Sampling(temperature=0.0, logit_bias=((BYTE_EOS, 1000.0),))
    with Recorded(config(byte_model)) as engine:
        for name, began, stop_type in (
            ("limit", task("a", PROMPT, n_predict=12, seed=3), StopType.LIMIT),
            ("eos", task("b", PROMPT, sampling=force_end), StopType.EOS),
        ):
            answer, events = whole(engine, began)
            again, _ = resumed(engine, began, events, name)
            assert (again.ids, again.text, again.stop_type) == (answer.ids, answer.text, stop_type)
            assert engine.tokens(name) == []
        assert engine.engine.free_slots() == 4
