"""What is computed next, without a model."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.jobs import Lane
from tests.worker.engine.harness import task
from tests.worker.engine.parts import buffer, sequence_in
from worker.engine import EmbedTask, SequenceKey
from worker.engine.adapters import Scales
from worker.engine.cells.resident import Resident
from worker.engine.faults import Trial
from worker.engine.lanes import Ageing, Lanes
from worker.engine.plan import MIN_PREFILL, OWN_TURN_EVERY, TARGET_MS, TARGET_UNHURRIED_MS, Pace, Plan
from worker.engine.schedule import Schedule
from worker.engine.sequence import Discarded, Sequence
from worker.engine.vision.images import ImageRows, Placed, spans_of

N_BATCH = 512
PERSON, BULK = Lane.INTERACTIVE, Lane.BULK
SETS: list[Scales] = [(0.0,), (0.5,), (1.0,)]


def prefilling(slot: int, lane: Lane, n_prompt: int = 150, scales: Scales = ()) -> Sequence:
    known = [65] * n_prompt
    return sequence_in(slot, Resident(buffer(known), n_prompt), task(str(slot), known, lane=lane, scales=scales))


def generating(slot: int, lane: Lane, scales: Scales = ()) -> Sequence:
    sequence = prefilling(slot, lane, 10, scales)
    sequence.resident.n_cached += 10
    sequence.served(0.0)
    sequence.choose(65, 0.0)
    return sequence


def inputs(*lanes: Lane, n_tokens: int = 50, since: float | None = None) -> Lanes[EmbedTask]:
    waiting: Lanes[EmbedTask] = Lanes()
    for at, lane in enumerate(lanes):
        key = SequenceKey("list", at)
        waiting.add(EmbedTask(key, (65,) * n_tokens, lane=lane), time.monotonic() if since is None else since)
    return waiting


def schedule(age_s: float = 1e6, *, has_adapters: bool = False) -> Schedule:
    return Schedule(N_BATCH, Ageing(age_s, 1e6), has_adapters=has_adapters)


def pace(token_ms: float = 10.0) -> Pace:
    learnt = Pace(N_BATCH)
    learnt.observe(1, 0, 10.0)
    learnt.observe(0, 100, 100 * token_ms)
    return learnt


def who(plan: Plan[Sequence]) -> list[int]:
    return [sequence.slot for sequence, _ in plan.shares]


def test_who_is_on_trial_is_decoded_with_nobody_else_and_no_more_than_there_is_room_for() -> None:
    running, asked = [generating(0, PERSON), prefilling(1, BULK), generating(2, PERSON)], schedule()
    running[2].end(Discarded())
    trial = asked.plan_trial(Trial((running[1], running[2]), 100))
    assert (who(trial), trial.n_prefill) == ([1], 100)
    asked.plan_less(100)
    assert asked.plan_trial(Trial((running[1],), 100)).n_prefill == 50


def test_without_room_half_as_much_is_planned_until_a_decode_succeeds() -> None:
    running, asked, quick = [prefilling(0, PERSON)], schedule(), pace(0.1)
    sizes = []
    for _ in range(3):
        sizes.append(asked.plan(running, quick).n_prefill)
        asked.plan_less(sizes[-1])
    asked.decoded()
    assert [*sizes, asked.plan(running, quick).n_prefill] == [150, 75, 37, 150]


def test_decodes_of_bulk_alone_are_short_after_a_person_came() -> None:
    running, asked = [prefilling(0, BULK)], schedule()
    long = asked.plan(running, pace()).n_prefill
    asked.hurry(time.monotonic())
    short = asked.plan(running, pace()).n_prefill
    assert long == pytest.approx(TARGET_UNHURRIED_MS / 10.0, abs=2)
    assert short == pytest.approx(TARGET_MS / 10.0, abs=32)
    assert short < long


def test_beside_people_the_bulk_goes_first_that_was_served_the_longest_ago() -> None:
    people, rows = [generating(slot, PERSON) for slot in range(8)], [generating(slot, BULK) for slot in (8, 9)]
    asked = Schedule(len(people) + 1, Ageing(1e6, 1e6))  # with room for one row more
    learnt = pace()
    learnt.observe(8, 0, 80.0)
    served: list[int] = []
    for at in range(OWN_TURN_EVERY):
        for sequence in asked.plan([*people, *rows], learnt).generating[len(people) :]:
            sequence.served_at = float(at + 1)
            served.append(sequence.slot)
    assert served[:4] == [8, 9, 8, 9]


@pytest.mark.parametrize("lane", list(Lane))
def test_batches_and_embeddings_of_a_lane_take_turns(lane: Lane) -> None:
    running, waiting, asked = [generating(0, lane)], inputs(lane), schedule()
    turns = []
    for _ in range(6):
        turns.append(asked.is_turn_to_embed(waiting, running, pace(), 10.0))
        if turns[-1]:
            asked.embedded(lane)
        else:
            asked.plan(running, pace())
    assert turns == [True, False] * 3


def test_inputs_alone_have_every_turn() -> None:
    asked = schedule()
    for _ in range(3):
        assert asked.is_turn_to_embed(inputs(BULK), [], pace(), 10.0)
        asked.embedded(BULK)
    assert not asked.is_turn_to_embed(inputs(), [], pace(), 10.0)


def test_bulk_inputs_wait_for_people_until_their_turn_is_due_and_afforded() -> None:
    running, cheap, dear, asked = [generating(0, PERSON)], inputs(BULK, n_tokens=1), inputs(BULK), schedule()
    for _ in range(OWN_TURN_EVERY):
        assert not asked.is_turn_to_embed(cheap, running, pace(), 10.0)
        asked.plan(running, pace())
    assert asked.is_turn_to_embed(cheap, running, pace(), 10.0)
    assert not asked.is_turn_to_embed(dear, running, pace(), 10.0)
    asked.embedded(BULK)
    assert not asked.is_turn_to_embed(cheap, running, pace(), 10.0)


def test_rows_of_bulk_wait_for_inputs_of_people_until_their_turn_is_due() -> None:
    running, waiting, asked = [generating(0, BULK)], inputs(PERSON), schedule()
    for _ in range(OWN_TURN_EVERY):
        assert asked.is_turn_to_embed(waiting, running, pace(), 10.0)
        asked.embedded(PERSON)
    assert not asked.is_turn_to_embed(waiting, running, pace(), 10.0)
    asked.plan(running, pace())
    assert asked.is_turn_to_embed(waiting, running, pace(), 10.0)


def test_a_turn_of_inputs_is_as_long_as_a_prefill_but_bulk_beside_people_has_one_input() -> None:
    n_a_prefill = pace().prefill_budget(0, is_hurried=False)
    assert schedule().next_to_embed(inputs(BULK), [], pace()) == (BULK, n_a_prefill)
    assert schedule().next_to_embed(inputs(BULK, PERSON), [], pace()) == (PERSON, n_a_prefill)
    assert schedule().next_to_embed(inputs(BULK), [generating(0, PERSON)], pace()) == (BULK, 1)


def test_a_bulk_input_that_has_waited_too_long_goes_before_those_of_people() -> None:
    asked, waiting = schedule(age_s=30.0), inputs(BULK, PERSON, since=time.monotonic() - 60.0)
    assert asked.next_to_embed(waiting, [], pace()) == (BULK, 1)
    assert asked.next_to_embed(waiting, [], pace())[0] is PERSON


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(list(Lane)), st.sampled_from(SETS)), min_size=1, max_size=8))
def test_no_batch_mixes_sets_of_adapters_and_each_sequence_has_its_turn(
    kinds: list[tuple[bool, Lane, Scales]],
) -> None:
    running = [
        generating(slot, lane, scales) if is_generating else prefilling(slot, lane, scales=scales)
        for slot, (is_generating, lane, scales) in enumerate(kinds)
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("worker.engine.schedule.PAUSE_S", 0.0)
        patched.setattr("worker.engine.schedule.PAUSE_BULK_S", 0.0)
        asked = schedule(has_adapters=True)
    served: set[int] = set()
    for at in range((len(running) + 1) * (OWN_TURN_EVERY + 1)):
        plan = asked.plan(running, pace())
        assert len({sequence.scales for sequence, _ in plan.shares}) == 1
        for sequence, _ in plan.shares:
            sequence.served_at = float(at + 1)
        served.update(who(plan))
    assert served == set(range(len(running)))


def test_people_do_not_wait_for_bulk_that_has_other_adapters() -> None:
    running, asked = [generating(0, BULK, SETS[0]), prefilling(1, BULK, scales=SETS[0])], schedule(has_adapters=True)
    assert who(asked.plan(running, pace())) == [0, 1]
    running.append(generating(2, PERSON, SETS[1]))
    assert who(asked.plan(running, pace())) == [2]


def test_beside_people_bulk_with_their_adapters_goes_along_and_other_bulk_has_a_turn_of_its_own_now_and_then() -> None:
    running = [generating(0, PERSON, SETS[0]), generating(1, BULK, SETS[0]), generating(2, BULK, SETS[1])]
    running.append(generating(3, BULK, SETS[2]))
    asked, learnt = schedule(has_adapters=True), Pace(N_BATCH)
    for n_rows in (1, 2) * 10:
        learnt.observe(n_rows, 0, 20.0 + n_rows)  # rows cost little
    turns: list[list[int]] = []
    for at in range(2 * (OWN_TURN_EVERY + 1)):
        turns.append(who(asked.plan(running, learnt)))
        for slot in turns[-1]:
            running[slot].served_at = float(at + 1)
    assert [0, 1] in turns
    own = {at: turn for at, turn in enumerate(turns) if 0 not in turn}
    assert own == {OWN_TURN_EVERY: [2], 2 * OWN_TURN_EVERY + 1: [3]}


def test_those_on_trial_are_tried_one_set_at_a_time() -> None:
    running, asked = [generating(slot, PERSON, SETS[slot % 2]) for slot in range(4)], schedule(has_adapters=True)
    assert who(asked.plan_trial(Trial(tuple(running), 100))) == [0, 2]


def viewing(slot: int, lane: Lane, *, n_rows: int = 100, is_causal: bool = True) -> Sequence:
    """Its first token is in the cache, and next is an image."""
    image = ImageRows(-1, np.zeros((n_rows, 1), dtype=np.float32), n_rows, is_causal=is_causal)
    prompt, images = [65, *[-1] * n_rows, 65], (Placed(1, image),)
    resident = Resident(buffer(prompt), len(prompt), spans=spans_of(images))
    resident.n_cached = 1
    return sequence_in(slot, resident, task(str(slot), prompt, lane=lane, images=images))


def test_rows_of_an_image_and_tokens_are_decoded_in_turns_and_never_together() -> None:
    running, asked = [generating(0, PERSON), viewing(1, PERSON), prefilling(2, PERSON), viewing(3, PERSON)], schedule()
    turns = []
    for turn in range(6):
        plan = asked.plan(running, pace())
        for sequence, n_tokens in plan.prefill:
            sequence.served_at = turn + 1.0
            assert sequence.is_at_image is (sequence.slot in (1, 3))
            assert n_tokens <= MIN_PREFILL, "as little as a decode may have, where 250 ms are not enough for more"
        turns.append(who(plan))
    assert turns == [[1], [0, 2], [3], [0, 2], [1], [0, 2]]


def test_an_image_alone_is_decoded_at_once() -> None:
    running, asked = [viewing(0, PERSON)], schedule()
    assert [who(asked.plan(running, pace())) for _ in range(3)] == [[0]] * 3


def test_an_image_of_bulk_waits_for_people_until_its_turn_is_due_and_then_takes_one_decode() -> None:
    running, asked = [generating(0, PERSON), viewing(1, BULK)], schedule()
    turns = [who(asked.plan(running, pace(1.0))) for _ in range(3 * OWN_TURN_EVERY)]
    assert all(len(turn) == 1 for turn in turns)
    assert [at for at, turn in enumerate(turns) if turn == [1]] == [OWN_TURN_EVERY, 2 * OWN_TURN_EVERY + 1]


def test_a_persons_image_goes_before_that_of_bulk_and_before_its_tokens() -> None:
    running, asked = [viewing(0, BULK), viewing(1, PERSON), generating(2, BULK)], schedule()
    assert [who(asked.plan(running, pace())) for _ in range(4)] == [[1]] * 4


def test_rows_that_see_each_other_are_planned_all_at_once_however_long_it_takes() -> None:
    running, asked = [viewing(0, PERSON, is_causal=False)], schedule()
    plan = asked.plan(running, pace(token_ms=100.0))
    assert plan.n_prefill == 100
    assert not plan.can_shrink
    asked.plan_less(100)
    assert asked.plan(running, pace()).n_prefill == 100
    assert asked.plan_trial(Trial((running[0],), 7)).n_prefill == 100


def test_who_is_on_trial_with_an_image_has_its_turn_after_those_with_tokens() -> None:
    members, asked = (viewing(0, PERSON), generating(1, PERSON), prefilling(2, BULK)), schedule()
    assert who(asked.plan_trial(Trial(members, 50))) == [1, 2]
    left = asked.plan_trial(Trial(members[:1], 50))
    assert (who(left), left.n_prefill) == ([0], 50)
