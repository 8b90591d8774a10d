"""Decodes fail, and whoever is not at fault says what it would have said. Faults are made where llama.cpp is called;
all else is real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shared.events import Failure
from shared.jobs import Lane
from tests.worker.engine.faulty import Decode, Fault, Faults
from tests.worker.engine.harness import Recorded, config, task
from worker.engine import GenerateTask

N_SLOTS = 4
BAD = 2
"""Its slot, which is that of the third task."""
N_PREDICT = 10

FAULTS = {
    "invalid": Fault(-1),
    "no memory": Fault(-2),
    "failed": Fault(-3),
    "failed halfway": Fault(-3, is_halfway=True),
    "unheard of": Fault(-7),
    "aborted halfway": Fault(2, is_halfway=True),
    "no cells": Fault(1),
    "no logits": Fault(has_logits=False),
}
SPOILT = Fault(spoils=frozenset(range(N_SLOTS)))


def tasks(**more: object) -> list[GenerateTask]:
    """One for each slot; all begin alike, so that cells are shared."""
    return [
        task(f"job{at}", [*b"What they all begin with, and then ", *range(65 + at, 80)], n_predict=N_PREDICT, **more)
        for at in range(N_SLOTS)
    ]


@pytest.fixture(scope="module")
def undisturbed(byte_model: Path) -> list[str]:
    with Recorded(config(byte_model)) as engine:
        return [answer.text for answer in engine.run(*tasks())]


def disturbed(byte_model: Path, faults: Faults) -> list[str | None]:
    """Texts of the same, None for those that failed; and all slots serve afterwards."""
    with Recorded(config(byte_model), open_context=faults.open) as engine:
        engine.submit(*tasks())
        endings = [engine.ending(each.key.job_id) for each in tasks()]
        faults.rule = lambda _decode: None
        assert engine.engine.free_slots() == N_SLOTS
        again = [engine.run(each)[0] for each in (task(f"again{at}", b"Go on", n_predict=2) for at in range(5))]
        assert len({answer.text for answer in again}) == 1
    for ending in endings:
        if isinstance(ending, Failure):
            assert ending.code == "engine_failed"
    return [None if isinstance(ending, Failure) else ending.text for ending in endings]


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("first", [2, 7], ids=["in the prompts", "between tokens"])
def test_a_decode_that_fails_once_changes_no_text(
    byte_model: Path, undisturbed: list[str], name: str, first: int
) -> None:
    faults = Faults(lambda decode: FAULTS[name] if decode.number == first else None)
    assert disturbed(byte_model, faults) == undisturbed
    assert faults.n_openings == 0


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("first", [1, 7], ids=["in its prompt", "between its tokens"])
def test_a_sequence_whose_decodes_always_fail_fails_alone(
    byte_model: Path, undisturbed: list[str], name: str, first: int
) -> None:
    faults = Faults(lambda decode: FAULTS[name] if decode.number >= first and BAD in decode.slots else None)
    assert disturbed(byte_model, faults) == [None if at == BAD else text for at, text in enumerate(undisturbed)]
    assert faults.n_openings == 0


def test_a_sequence_whose_rows_are_no_numbers_fails_alone(byte_model: Path, undisturbed: list[str]) -> None:
    faults = Faults(lambda decode: Fault(spoils=frozenset({BAD})) if decode.number >= 5 else None)
    assert disturbed(byte_model, faults) == [None if at == BAD else text for at, text in enumerate(undisturbed)]
    assert faults.n_openings == 0


def test_what_a_failed_sequence_had_in_the_cache_is_lent_to_nobody(byte_model: Path) -> None:
    faults = Faults(lambda decode: Fault(spoils=frozenset({0})) if decode.number >= 5 else None)
    alone = task("job", b"What nobody else begins with", n_predict=N_PREDICT)
    with Recorded(config(byte_model), open_context=faults.open) as engine:
        engine.submit(alone, task("beside", b"another", n_predict=N_PREDICT))
        assert isinstance(engine.ending("job"), Failure)
        engine.answer("beside")
        faults.rule = lambda _decode: None
        assert engine.run(replace(alone, key=alone.key._replace(job_id="again")))[0].timings.cache_n == 0


@pytest.mark.parametrize("first", [1, 7])
def test_a_context_in_which_nothing_can_be_computed_is_made_anew(
    byte_model: Path, undisturbed: list[str], first: int
) -> None:
    faults = Faults(lambda decode: Fault(-3, True) if decode.number >= first and not decode.n_openings else None)
    assert disturbed(byte_model, faults) == undisturbed
    assert faults.n_openings == 1


@pytest.mark.parametrize("first", [2, 7])
def test_rows_that_are_no_numbers_are_computed_again_in_an_empty_cache(
    byte_model: Path, undisturbed: list[str], first: int
) -> None:
    faults = Faults(lambda decode: SPOILT if decode.number >= first and not decode.n_openings else None)
    assert disturbed(byte_model, faults) == undisturbed
    assert faults.n_openings == 1


@pytest.mark.parametrize("name", ["failed halfway", "no memory", "aborted halfway"])
@pytest.mark.parametrize("model", ["recurrent_model", "sliding_model"])
def test_a_model_that_lost_its_state_reads_its_tokens_again(
    request: pytest.FixtureRequest, model: str, name: str
) -> None:
    """In small batches, so that a state has moved on by the time something fails."""
    path: Path = request.getfixturevalue(model)

    def texts(faults: Faults) -> list[str | None]:
        with Recorded(config(path, n_batch=40, n_ubatch=8), open_context=faults.open) as engine:
            engine.submit(*tasks())
            endings = [engine.ending(each.key.job_id) for each in tasks()]
        return [None if isinstance(ending, Failure) else ending.text for ending in endings]

    undisturbed = texts(Faults(lambda _decode: None))
    for first in (2, 10):
        once = Faults(lambda decode, first=first: FAULTS[name] if decode.number == first else None)  # type: ignore[misc]
        assert (texts(once), once.n_openings) == (undisturbed, 0)
    always = Faults(lambda decode: FAULTS[name] if decode.number >= 10 and BAD in decode.slots else None)
    assert texts(always) == [None if at == BAD else text for at, text in enumerate(undisturbed)]
    never = Faults(lambda decode: FAULTS[name] if decode.number >= 10 and not decode.n_openings else None)
    assert (texts(never), never.n_openings) == (undisturbed, 1)


def test_parked_sequences_go_on_in_a_new_context_too(byte_model: Path) -> None:
    def broken(decode: Decode) -> Fault | None:
        return Fault(-3) if parked and not decode.n_openings else None

    parked: list[bool] = []
    faults = Faults(broken)
    bulk = [task(f"bulk{at}", bytes(range(60 + at, 110)), n_predict=40, lane=Lane.BULK) for at in range(2)]
    person = task("person", b"somebody who waits", n_predict=12)
    with Recorded(config(byte_model, n_slots=2)) as engine:
        texts = [answer.text for answer in engine.run(*bulk, person)]
    with Recorded(config(byte_model, n_slots=2), open_context=faults.open) as engine:
        engine.submit(*bulk)
        engine.wait_for(lambda: len(engine._events["bulk1"]) > 5)
        engine.submit(person)
        engine.wait_for(lambda: bool(engine.engine.snapshot().n_parked) and bool(engine._events["person"]))
        parked.append(True)
        assert [engine.answer(each.key.job_id).text for each in (*bulk, person)] == texts
    assert faults.n_openings == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("n_good_openings", [0, 1000], ids=["none is to be had", "a new one fails as well"])
def test_where_nothing_helps_the_decode_thread_ends(byte_model: Path, n_good_openings: int) -> None:
    faults = Faults(lambda _decode: Fault(-3), n_good_openings=n_good_openings)
    with Recorded(config(byte_model), open_context=faults.open) as engine:
        engine.submit(*tasks())
        engine.engine._thread.join(10.0)
        assert not engine.engine.snapshot().is_alive
        assert not any(engine.has_ended(each.key.job_id) for each in tasks())
    assert faults.n_openings == (3 if n_good_openings == 0 else 1)
