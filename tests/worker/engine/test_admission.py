"""Who gets a slot, without a model: sequences are computed by the books alone."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.jobs import Lane
from tests.worker.engine.harness import task
from tests.worker.engine.parts import ScriptedCache, buffer, sequence_in
from worker.engine import GenerateTask, SlotSnapshot, admission
from worker.engine.admission import GROWTH, Admission
from worker.engine.cells import Cells, Ids, Standing
from worker.engine.lanes import Ageing
from worker.engine.sequence import Discarded, Phase, Sequence

NEVER_S = 1e6


class Stage:
    """An admission over scripted cells. The first letter of a name is the lane's."""

    def __init__(
        self, n_slots: int = 1, *, n_cells: int = 1000, age_s: float = NEVER_S, quantum_s: float = NEVER_S
    ) -> None:
        self.cache = ScriptedCache(n_ids=2 * n_slots)
        self.cells = Cells(self.cache, 2 * n_slots, n_cells=n_cells)
        self.admission = Admission(self.cells, self, n_slots, Ageing(age_s, quantum_s))

    def come(self, *names: str, since: float | None = None) -> None:
        for name in names:
            lane = Lane.BULK if name.startswith("b") else Lane.INTERACTIVE
            self.admission.add(task(name, list(name.encode()), lane=lane), since or time.monotonic())

    def admit(self) -> list[str]:
        """Returns who runs then."""
        self.admission.admit()
        return self.running()

    def running(self) -> list[str]:
        return [sequence.task.key.job_id for sequence in self.admission.running]

    def compute(self, name: str, n_tokens: int = 1) -> None:
        """That many tokens are chosen and computed."""
        sequence = self.sequence(name)
        for token in range(n_tokens):
            sequence.resident.append(token)
        resident = sequence.resident
        self.cache.compute(resident.seq_id, resident.tokens[resident.n_cached : resident.n_tokens].tolist())
        self.cells.computed(resident, resident.n_pending)
        sequence.served(time.monotonic())

    def end(self, *names: str) -> int:
        for name in names:
            self.sequence(name).end(Discarded())
        return self.admission.retire()

    def sequence(self, name: str) -> Sequence:
        (found,) = [each for each in self.admission.sequences() if each.task.key.job_id == name]
        return found

    def known(self, task: GenerateTask) -> Ids:
        return np.array(task.prompt, dtype=np.int32)

    def launch(self, task: GenerateTask, known: Ids, since: float, slot: int) -> Sequence:
        """As the admission wants it."""
        resident = self.cells.place(buffer(task.prompt), len(known), may_reuse=task.request.cache_prompt)
        return sequence_in(slot, resident, task, since)


def test_people_start_before_bulk_and_each_lane_in_its_order() -> None:
    stage = Stage(3)
    stage.come("b0", "i0", "b1", "i1")
    assert stage.admit() == ["i0", "i1", "b0"]
    assert stage.admission.n_waiting == 1
    stage.end("i1")
    assert stage.admit() == ["i0", "b0", "b1"]


def test_people_take_the_slots_of_bulk_that_has_the_fewest_cells_and_never_those_of_people() -> None:
    stage = Stage(2)
    stage.come("b0", "b1")
    stage.admit()
    stage.compute("b0", 50)
    stage.compute("b1", 10)
    assert stage.admission.has_slot_for_person()
    stage.come("i0")
    assert stage.admit() == ["b0", "i0"]
    assert [each.task.key.job_id for each in stage.admission.slots if each] == ["b0", "i0"]
    assert stage.sequence("b1").phase is Phase.PARKED
    stage.come("i1", "i2")
    assert stage.admit() == ["i0", "i1"]
    assert (stage.admission.n_parked, stage.admission.n_waiting) == (2, 1)
    assert not stage.admission.has_slot_for_person()


def test_bulk_without_a_slot_is_told_of_and_since_when() -> None:
    stage = Stage()
    came_at = time.monotonic() - 100
    stage.come("b0", "b1", since=came_at)
    stage.admit()
    stage.come("i0", "i1")
    before = time.monotonic()
    stage.admit()
    (parked, parked_at), (waiting, waits_since) = stage.admission.stuck()
    assert (parked.job_id, waiting.job_id) == ("b0", "b1")
    assert before <= parked_at <= time.monotonic()
    assert waits_since == came_at
    assert not SlotSnapshot.of(0, stage.sequence("b0"), 64).is_processing


def test_parked_bulk_goes_on_with_its_cells_before_other_bulk_starts() -> None:
    stage = Stage()
    stage.come("b0", "b1")
    stage.admit()
    stage.compute("b0", 50)
    n_cached = stage.sequence("b0").resident.n_cached
    stage.come("i0")
    assert stage.admit() == ["i0"]
    stage.end("i0")
    assert not stage.admission.is_idle
    assert stage.admit() == ["b0"]
    assert stage.sequence("b0").resident.n_cached == n_cached


@pytest.mark.parametrize("is_parked", [True, False])
def test_one_of_bulk_that_has_waited_too_long_goes_before_people_and_keeps_its_slot(is_parked: bool) -> None:
    stage = Stage(2, age_s=30.0)
    long_ago = time.monotonic() - 60.0
    stage.come("b0", "b1", since=long_ago)
    if is_parked:
        stage.admit()
        stage.come("i0", "i1")
        stage.admit()
        assert stage.admission.n_parked == 2
        stage.end("i0", "i1")
    assert not stage.admission.is_idle
    stage.come("i2", "i3", "i4")
    first, second = stage.admit()
    assert (first[0], second) == ("b", "i2")
    assert not stage.admission.has_slot_for_person()
    assert stage.admit() == [first, second]


def test_once_a_quantum_is_over_the_next_of_bulk_is_due_and_the_one_before_is_guarded_no_more() -> None:
    stage = Stage(2, age_s=30.0, quantum_s=0.0)
    stage.come("b0", "b1", since=time.monotonic() - 60.0)
    stage.come("i0", "i1")
    assert stage.admit() == ["i0", "i1"]
    assert stage.admission.n_parked == 2  # so both had slots, before people and in the same turn


def test_those_that_ended_leave_their_slots_and_their_shelves() -> None:
    stage = Stage()
    stage.come("b0")
    stage.admit()
    stage.compute("b0", 5)
    stage.come("i0")
    stage.admit()
    assert stage.end("b0", "i0") == 2
    assert stage.admission.is_idle
    assert {each.standing for each in stage.cells.residents} == {Standing.IDLE}
    assert stage.admission.retire() == 0


def test_who_waits_can_be_taken_out() -> None:
    stage = Stage()
    stage.come("i0", "i1", "b0")
    assert not stage.admission.is_idle
    gone = stage.admission.remove(lambda task: task.key.job_id != "i1")
    assert [each.key.job_id for each in gone] == ["i0", "b0"]
    assert stage.admission.has_slot_for_person()
    assert stage.admit() == ["i1"]
    assert not (stage.admission.is_idle or stage.admission.has_slot_for_person())


def test_when_cells_run_out_bulk_goes_before_people_and_the_newest_first_but_never_the_last() -> None:
    stage = Stage(4)
    for name in ("b0", "i0", "b1", "i1"):
        stage.come(name)
        stage.admit()
        stage.compute(name, 20)
    gone = []
    while stage.admission.make_room(1000):
        gone += [name for name in ("b0", "i0", "b1", "i1") if name not in stage.running() and name not in gone]
    assert gone == ["b1", "b0", "i1"]
    assert stage.running() == ["i0"]


def test_who_comes_starts_only_beside_what_those_that_run_are_about_to_need() -> None:
    long = "i" * 30
    for n_cells, n_running in ((30 + 30 + 2 * GROWTH - 1, 1), (30 + 30 + 2 * GROWTH, 2)):
        stage = Stage(2, n_cells=n_cells)
        stage.come(long, "i" + "j" * 29)
        assert len(stage.admit()) == n_running


def test_the_first_of_bulk_lets_only_so_many_pass_whose_beginning_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_PASSED", 2)
    stage = Stage()
    known = [f"b{'x' * 20}{at}" for at in range(5)]
    stage.come(known[0])
    stage.admit()
    stage.compute(known[0])
    stage.come("bstranger", *known[1:])
    started = []
    for _ in range(5):
        stage.end(*stage.running())
        started += stage.admit()
        stage.compute(started[-1])
    assert started == [known[1], known[2], "bstranger", known[3], known[4]]


STEPS = st.lists(st.tuples(st.sampled_from(["b", "i", "end", "compute"]), st.integers(0, 50)), max_size=60)


@settings(deadline=None, max_examples=200)
@given(STEPS, st.integers(1, 4), st.sampled_from([0.0, NEVER_S]), st.sampled_from([0.0, NEVER_S]))
def test_whatever_happens_everybody_is_in_one_place_and_no_slot_is_wasted(
    steps: list[tuple[str, int]], n_slots: int, age_s: float, quantum_s: float
) -> None:
    stage = Stage(n_slots, age_s=age_s, quantum_s=quantum_s)
    here: set[str] = set()
    for at, (what, which) in enumerate(steps):
        running, known = stage.running(), stage.admission.sequences()
        if what in ("b", "i"):
            stage.come(f"{what}{at}")
            here.add(f"{what}{at}")
        elif what == "end" and known:
            name = known[which % len(known)].task.key.job_id
            assert stage.end(name) == 1
            here.remove(name)
        elif what == "compute" and running:
            stage.compute(running[which % len(running)])
        running = stage.admit()
        n_waiting, n_parked = stage.admission.n_waiting, stage.admission.n_parked
        assert len(running) + n_parked + n_waiting == len(here)
        assert len(running) == n_slots or n_waiting + n_parked == 0
        assert n_parked <= n_slots
        for sequence in stage.admission.running:
            assert stage.admission.slots[sequence.slot] is sequence
            assert sequence.resident.standing is Standing.RUNNING
        if age_s == NEVER_S and any(name.startswith("i") for name in here.difference(running)):
            assert not any(name.startswith("b") for name in running)
