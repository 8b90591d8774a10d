"""Who waits for one slot alone: when it has it, who gives way, and that nobody waits for ever. Without a model."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.jobs import Lane
from tests.worker.engine.harness import task
from tests.worker.engine.test_admission import Stage


def come(stage: Stage, name: str, slot: int | None = None, *, since: float | None = None) -> None:
    """The first letter of a name is the lane's."""
    lane = Lane.BULK if name.startswith("b") else Lane.INTERACTIVE
    stage.admission.add(task(name, list(name.encode()), lane=lane, slot=slot), since or time.monotonic())


def slot_of(stage: Stage, name: str) -> int:
    return stage.sequence(name).slot


def test_it_runs_in_the_slot_that_it_names() -> None:
    stage = Stage(3)
    come(stage, "i0", 2)
    come(stage, "i1")
    assert stage.admit() == ["i0", "i1"]
    assert (slot_of(stage, "i0"), slot_of(stage, "i1")) == (2, 0)


def test_it_waits_for_that_slot_and_keeps_nobody_from_the_others() -> None:
    stage = Stage(2)
    come(stage, "i0")
    stage.admit()
    come(stage, "i1", 0)
    come(stage, "i2")
    assert stage.admit() == ["i0", "i2"]
    stage.end("i2")
    assert stage.admit() == ["i0"], "another slot is none of its own"
    stage.end("i0")
    assert stage.admit() == ["i1"]
    assert slot_of(stage, "i1") == 0


def test_it_goes_before_those_who_would_take_any() -> None:
    stage = Stage(1)
    come(stage, "i0")
    stage.admit()
    come(stage, "i1")
    come(stage, "i2", 0)
    stage.end("i0")
    assert stage.admit() == ["i2"]


def test_but_not_before_one_who_has_waited_too_long() -> None:
    stage = Stage(1, age_s=30.0)
    come(stage, "i0", since=time.monotonic() - 31)
    come(stage, "i1", 0)
    assert stage.admit() == ["i0"]


def test_those_of_one_slot_have_it_in_turn() -> None:
    stage = Stage(2)
    for name in ("i0", "i1", "i2"):
        come(stage, name, 1)
    for name in ("i0", "i1", "i2"):
        assert stage.admit() == [name]
        assert slot_of(stage, name) == 1
        stage.end(name)


def test_bulk_in_it_gives_way_to_a_person_and_goes_on_where_there_is_room() -> None:
    stage = Stage(2)
    stage.come("b0", "b1")
    assert stage.admit() == ["b0", "b1"]
    come(stage, "i0", slot_of(stage, "b1"))
    assert stage.admit() == ["b0", "i0"]
    stage.end("b0")
    assert stage.admit() == ["i0", "b1"]
    assert slot_of(stage, "b1") == 0


def test_bulk_of_its_own_slot_waits_for_it_again_when_it_was_parked() -> None:
    stage = Stage(2)
    come(stage, "b0", 1)
    stage.admit()
    come(stage, "i0", 1)
    assert stage.admit() == ["i0"]
    stage.end("i0")
    assert stage.admit() == ["b0"]
    assert slot_of(stage, "b0") == 1


def test_bulk_waits_for_bulk() -> None:
    stage = Stage(1)
    stage.come("b0")
    stage.admit()
    come(stage, "b1", 0)
    assert stage.admit() == ["b0"]


def test_of_idle_slots_others_take_one_that_nobody_waits_for() -> None:
    stage = Stage(2)
    come(stage, "b0", 0)
    come(stage, "i1")
    assert stage.admit() == ["i1", "b0"]
    assert (slot_of(stage, "i1"), slot_of(stage, "b0")) == (1, 0)


def test_bulk_that_waits_too_long_has_its_slot_although_people_want_it() -> None:
    stage = Stage(1, age_s=30.0, quantum_s=5.0)
    come(stage, "i0", 0)
    stage.admit()
    come(stage, "b0", 0, since=time.monotonic() - 31)
    come(stage, "i1", 0)
    come(stage, "i2")
    assert stage.admit() == ["i0"]
    stage.end("i0")
    assert stage.admit() == ["b0"]


def test_who_has_its_slot_but_no_cells_lets_nobody_pass() -> None:
    stage = Stage(2, n_cells=60)
    come(stage, "i0", 0)
    stage.admit()
    stage.compute("i0", 30)
    stage.admission.add(task("i1", list(range(20)), slot=1), time.monotonic())
    come(stage, "i2")
    assert stage.admit() == ["i0"]
    stage.end("i0")
    assert stage.admit() == ["i1", "i2"]


def test_a_cancelled_one_waits_no_more() -> None:
    stage = Stage(1)
    come(stage, "i0", 0)
    stage.admit()
    come(stage, "i1", 0)
    assert stage.admission.n_waiting == 1
    assert [each.key.job_id for each in stage.admission.remove(lambda each: True)] == ["i1"]
    stage.end("i0")
    assert stage.admission.is_idle


def test_a_slot_that_is_not_there_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        come(Stage(2), "i0", 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ib"), st.sampled_from([None, None, 0, 1])), min_size=1, max_size=14))
def test_everybody_comes_to_an_end(comers: list[tuple[str, int | None]]) -> None:
    stage = Stage(2)
    for number, (lane, slot) in enumerate(comers):
        come(stage, f"{lane}{number}", slot)
        stage.admit()
    n_ended = 0
    while running := stage.admit():
        for sequence in stage.admission.running:
            assert sequence.task.slot in (None, sequence.slot)
        assert len({sequence.slot for sequence in stage.admission.running}) == len(running)
        n_ended += stage.end(running[0])
    assert n_ended == len(comers)
