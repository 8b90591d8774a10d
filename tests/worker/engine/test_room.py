"""When there are fewer cells than all that run would fill: nobody fails, and everybody comes to an end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.events import StopType
from shared.jobs import Lane
from tests.models import BYTE_EOS
from tests.worker.engine.harness import EXACT, Recorded, config, plain_greedy, task
from tests.worker.engine.parts import ROOM
from tests.worker.engine.test_admission import NEVER_S, Stage
from worker.engine import EngineEvent, GenerateTask, SequenceKey
from worker.engine.admission import _rank
from worker.engine.sequence import Phase, Sequence

MOST_STEPS = 2_000


class Crowd(Stage):
    """Sequences that are decoded as the engine would, one token a step; `wanted` says how many each chooses."""

    def __init__(self, n_slots: int, n_cells: int, quantum_s: float = NEVER_S) -> None:
        age_s = 0.0 if quantum_s < NEVER_S else NEVER_S
        super().__init__(n_slots, n_cells=n_cells, age_s=age_s, quantum_s=quantum_s)
        self.wanted: dict[str, int] = {}
        self.n_parked = 0

    def arrive(self, task: GenerateTask) -> None:
        self.admission.add(task, 0.0)
        self.wanted[task.key.job_id] = task.request.n_predict

    def step(self) -> None:
        self.admission.retire()
        self.admission.admit()
        first = min(self.admission.running, key=_rank, default=None)
        while (n_missing := sum(each.n_wanted for each in self.admission.running) - self.cells.n_free) > 0:
            assert self.admission.make_room(n_missing)
        assert first is None or first in self.admission.running
        for sequence in self.admission.running:
            self._decode(sequence)

    def _decode(self, sequence: Sequence) -> None:
        if n_wanted := sequence.n_wanted:
            resident = sequence.resident
            self.cache.compute(resident.seq_id, resident.known[resident.n_cached :].tolist())
            self.cells.computed(resident, n_wanted)
            sequence.choose(7, 0.0)


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 30),  # steps before it comes
        st.sampled_from(list(Lane)),
        st.integers(0, 100),  # of a prefix that many have
        st.integers(1, 40),  # of its own
        st.integers(1, 60),  # tokens to choose
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


@settings(deadline=None, max_examples=60)
@given(ARRIVALS, st.integers(1, 5), st.integers(ROOM, 2 * ROOM), st.sampled_from([0.0, NEVER_S]))
def test_whoever_comes_everybody_ends_and_who_ranks_first_is_never_parked(
    arrivals: list[tuple[int, Lane, int, int, int, bool]], n_slots: int, n_cells: int, quantum_s: float
) -> None:
    crowd = Crowd(n_slots, n_cells, quantum_s)
    n_steps = n_cached = 0
    for at, (delay, lane, n_shared, n_own, n_predict, cache_prompt) in enumerate(arrivals):
        for _ in range(delay):
            crowd.step()
        prompt = [*range(n_shared), *[1000 + at] * n_own]
        crowd.arrive(task(f"job{at}", prompt, n_predict=n_predict, lane=lane, cache_prompt=cache_prompt, deadline=None))
    while not crowd.admission.is_idle:
        crowd.step()
        n_steps += 1
        assert n_steps < MOST_STEPS
    n_cached = sum(resident.n_cached for resident in crowd.cells.residents)
    assert n_cells - crowd.cells.n_free <= n_cached
    assert all(each.phase is Phase.ENDED for each in crowd.admission.slots if each)


def test_one_that_is_parked_for_want_of_cells_does_not_come_back_before_another_has_ended() -> None:
    crowd = Crowd(2, ROOM)
    for name in ("i0", "i1"):
        crowd.arrive(task(name, [ord(name[1])] * 60, n_predict=100))
    for _ in range(200):
        crowd.step()
        parked = [each.task.key.job_id for each in crowd.admission.sequences() if each.phase is Phase.PARKED]
        assert parked in ([], ["i1"])
        crowd.n_parked += parked != []
        if crowd.admission.is_idle:
            break
    assert crowd.admission.is_idle
    assert 40 < crowd.n_parked < 100


def prompt(n_tokens: int, first: int) -> list[int]:
    return [(first * 31 + at * 7 + at * at) % 256 for at in range(n_tokens)]


def test_when_cells_run_out_each_says_what_it_would_alone_and_nobody_is_cut_short(byte_model: Path) -> None:
    tasks = [task(f"job{at}", prompt(100 + 20 * at, at), n_predict=150) for at in range(6)]
    n_parked: list[int] = []

    def look(key: SequenceKey, event: EngineEvent) -> None:
        n_parked.append(engine.engine.snapshot().n_parked)

    with Recorded(config(byte_model, n_ctx=768, n_ctx_slot=600, n_batch=64, **EXACT), look) as engine:
        answers = engine.run(*tasks)
        assert engine.engine.free_slots() == 4
    for each, answer in zip(tasks, answers, strict=True):
        assert list(answer.ids) == plain_greedy(byte_model, each.prompt, 150, banned=[BYTE_EOS], **EXACT)
        assert (answer.stop_type, answer.truncated) == (StopType.LIMIT, False)
    assert max(n_parked) > 0


def test_a_sequence_as_long_as_all_cells_ends_with_its_context_and_others_after_it(byte_model: Path) -> None:
    with Recorded(config(byte_model, n_ctx=256, n_ctx_slot=256, n_slots=3, n_batch=32, **EXACT)) as engine:
        answers = engine.run(*(task(f"job{at}", prompt(50, at), n_predict=-1) for at in range(3)))
    for at, answer in enumerate(answers):
        assert (answer.stop_type, answer.truncated) == (StopType.LIMIT, True)
        assert list(answer.ids) == plain_greedy(byte_model, prompt(50, at), 206, banned=[BYTE_EOS], **EXACT)


@pytest.mark.parametrize("seed", range(2))
def test_in_any_mix_with_too_few_cells_each_text_is_what_it_is_alone(byte_model: Path, seed: int) -> None:
    dice = random.Random(seed)
    tasks = [
        task(
            f"job{at}",
            prompt(dice.choice([0, 60, 120]), dice.randrange(3)) + prompt(dice.randint(1, 60), 10 + at),
            n_predict=dice.choice([1, 20, 60]),
            lane=dice.choice(list(Lane)),
            cache_prompt=dice.random() < 0.8,
        )
        for at in range(30)
    ]
    room = {"n_ctx": 512, "n_ctx_slot": 300, "n_slots": 5, "n_batch": 64, "age_s": 0.02, "quantum_s": 0.01}
    with Recorded(config(byte_model, **room, **EXACT)) as engine:
        answers = engine.run(*tasks)
    for each, answer in zip(tasks, answers, strict=True):
        assert list(answer.ids) == plain_greedy(
            byte_model, each.prompt, each.request.n_predict, banned=[BYTE_EOS], **EXACT
        )
