from dataclasses import dataclass
from typing import NamedTuple, Self

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from worker.engine.plan import (
    MIN_PREFILL,
    OWN_TURN_EVERY,
    OWN_TURN_MS,
    STRETCH,
    STRETCH_AWAITED,
    TARGET_MS,
    TARGET_UNHURRIED_MS,
    Pace,
    Plan,
    Room,
    RowCost,
    Yielding,
    fair_shares,
    plan_batch,
    with_bulk,
)


@dataclass(frozen=True)
class Demand:
    n_wanted: int
    is_generating: bool = False
    is_at_image: bool = False
    n_least: int = 1


@pytest.mark.parametrize(
    ("wanted", "room", "shares"),
    [
        ([], 10, []),
        ([5], 10, [5]),
        ([100, 100], 64, [32, 32]),
        ([10, 100, 100], 64, [10, 27, 27]),
        ([100, 100, 100], 64, [22, 21, 21]),
        ([100, 100], 1, [1, 0]),
        ([100], 0, [0]),
        ([0, 7], 10, [0, 7]),
    ],
)
def test_prompts_share_a_batch_fairly(wanted: list[int], room: int, shares: list[int]) -> None:
    assert fair_shares(wanted, room) == shares


@given(st.lists(st.integers(0, 500), max_size=20), st.integers(0, 600))
def test_room_is_used_up_and_nobody_gets_too_much(wanted: list[int], room: int) -> None:
    shares = fair_shares(wanted, room)
    assert sum(shares) == min(room, sum(wanted))
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))


def test_generating_sequences_come_first_and_prompts_fill_the_rest() -> None:
    first, prompt, second = Demand(1, True), Demand(300), Demand(1, True)
    plan = plan_batch([first, prompt, second], n_batch=512, n_prefill=64)
    assert plan.generating == (first, second)
    assert plan.prefill == ((prompt, 64),)
    assert [n_tokens for _, n_tokens in plan.shares] == [1, 1, 64]


def test_a_batch_is_never_longer_than_allowed() -> None:
    plan = plan_batch([Demand(1, True)] * 6 + [Demand(100)] * 4, n_batch=8, n_prefill=64)
    assert plan.n_prefill == 2
    assert sum(n_tokens for _, n_tokens in plan.shares) == 8


def test_a_sequence_that_waits_for_another_gets_no_share() -> None:
    assert plan_batch([Demand(0)], n_batch=8, n_prefill=8).n_sequences == 0


def test_prefill_beside_generating_rows_keeps_to_the_target() -> None:
    pace = Pace(n_batch=2048)
    for _ in range(20):
        pace.observe(4, 0, 50.0)
        pace.observe(4, 100, 50.0 + 100 * 2.0)
    assert pace.prefill_budget(4) == pytest.approx((TARGET_MS - 50) / 2.0, abs=2)
    assert pace.prefill_budget(4, is_hurried=False) == pytest.approx((TARGET_UNHURRIED_MS - 50) / 2.0, abs=2)
    assert pace.prefill_budget(0, is_hurried=False) == pytest.approx(TARGET_UNHURRIED_MS / 2.0, abs=2)


def test_prefill_never_stands_still() -> None:
    pace = Pace(n_batch=2048)
    pace.observe(64, 0, 4000.0)
    pace.observe(64, 64, 9000.0)
    assert pace.prefill_budget(64) == MIN_PREFILL


def test_a_quick_machine_fills_the_batch() -> None:
    pace = Pace(n_batch=2048)
    pace.observe(0, 512, 5.0)
    assert pace.prefill_budget(8) == 2048


class Machine(NamedTuple):
    """What decodes cost, exactly."""

    base_ms: float
    row_ms: float
    token_ms: float

    @classmethod
    def of(cls, base_ms: float, row_ms: float, share: float) -> Self:
        """A token of a prompt is never dearer than a row."""
        return cls(base_ms, row_ms, share * row_ms)

    def ms(self, plan: Plan[Demand]) -> float:
        return self.base_ms + self.row_ms * len(plan.generating) + self.token_ms * plan.n_prefill

    def learnt(self) -> Pace:
        pace = Pace(n_batch=512)
        for n_rows in (1, 4, 8) * 5:
            self.teach(pace, Plan((Demand(1, True),) * n_rows))
            self.teach(pace, Plan((Demand(1, True),) * n_rows, ((Demand(64), 64),)))
        return pace

    def teach(self, pace: Pace, plan: Plan[Demand]) -> None:
        pace.observe(len(plan.generating), plan.n_prefill, self.ms(plan))


ROW, PROMPT = Demand(1, True), Demand(10_000)
BESIDE = {"n_batch": 512, "n_prefill": 512}


@pytest.mark.parametrize(
    ("bulk", "room", "n_rows", "prompts"),
    [
        ([ROW] * 4, Room(0.0, False), 0, []),
        ([ROW] * 4, Room(0.0, True), 1, []),
        ([ROW] * 4, Room(12.0, False), 2, []),
        ([PROMPT] * 2, Room(0.0, True), 0, [1]),
        ([PROMPT] * 2, Room(12.0, False), 0, [5]),
        ([ROW, PROMPT, ROW], Room(13.0, False), 1, [3]),
        ([PROMPT, ROW], Room(1.0, False), 0, []),
        ([Demand(0), Demand(3), ROW], Room(13.0, False), 1, [3]),
        ([PROMPT], Room(1e9, False), 0, [504]),
    ],
)
def test_bulk_gets_what_there_is_room_for_in_its_order(
    bulk: list[Demand], room: Room, n_rows: int, prompts: list[int]
) -> None:
    people = Plan((ROW,) * 8)
    plan = with_bulk(people, bulk, room, Machine(10.0, 5.0, 2.0).learnt(), **BESIDE)
    assert len(plan.generating) == 8 + n_rows
    assert [n_tokens for _, n_tokens in plan.prefill] == prompts


def test_prompts_of_bulk_take_no_more_than_people_left_of_the_prefill() -> None:
    people: Plan[Demand] = Plan((), ((PROMPT, 20),))
    plan = with_bulk(people, [PROMPT], Room(1e9, False), Pace(512), n_batch=512, n_prefill=20)
    assert plan == people


def test_bulk_sits_out_while_a_first_token_is_awaited_but_for_a_small_turn_now_and_then() -> None:
    yielding = Yielding()
    rooms = []
    for _ in range(2 * OWN_TURN_EVERY + 2):
        rooms.append(yielding.room(100.0, is_awaited=True))
        if rooms[-1].must_serve:
            yielding.took_turn()
        else:
            yielding.passed()
    assert rooms.count(Room(0.0, False)) == 2 * OWN_TURN_EVERY
    assert rooms.count(Room((STRETCH_AWAITED - 1) * 100.0, True)) == 2


def test_a_turn_that_cannot_be_cut_short_waits_until_it_is_afforded() -> None:
    yielding = Yielding()
    for _ in range(OWN_TURN_EVERY):
        yielding.passed()
    assert yielding.is_due(10.0, 10.0 * OWN_TURN_EVERY * (STRETCH - 1))
    assert not yielding.is_due(10.0, 10.0 * OWN_TURN_EVERY * (STRETCH - 1) + 1)
    yielding.took_turn()
    assert not yielding.is_due()


@settings(deadline=None, max_examples=50)
@example(Machine.of(1.0, 1.0, 1.0), [(1, 0, 1), (2, 0, 1)])
@given(
    st.builds(Machine.of, st.floats(0.1, 50), st.floats(0.01, 30), st.floats(0.1, 1)),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8), st.integers(0, 4)), min_size=1, max_size=6),
)
def test_people_are_stretched_seldom_and_bulk_is_never_stopped(
    machine: Machine, phases: list[tuple[int, int, int]]
) -> None:
    """A pace that knows nothing at first, on a machine whose costs are lines; who is there changes in phases."""
    pace, yielding = Pace(n_batch=512), Yielding()
    stretched: list[bool] = []
    for n_people, n_rows, n_prompts in phases:
        people, bulk = [ROW] * n_people, [ROW] * n_rows + [PROMPT] * n_prompts
        n_unserved = 0
        for step in range(2 * OWN_TURN_EVERY):
            alone = plan_batch(people, 512, 0)
            room = yielding.room(pace.least_ms(n_people, 0), is_awaited=False)
            yielding.took_turn() if room.must_serve else yielding.passed()
            turned = bulk[step % len(bulk) :] + bulk[: step % len(bulk)] if bulk else []
            plan = with_bulk(alone, turned, room, pace, **BESIDE)
            machine.teach(pace, plan)
            took_ms, alone_ms = machine.ms(plan), machine.ms(alone)
            is_stretched = took_ms > STRETCH * alone_ms * (1 + 1e-6)
            assert room.must_serve or not is_stretched
            assert took_ms <= max(OWN_TURN_MS, STRETCH * alone_ms) + alone_ms
            stretched.append(is_stretched)
            n_unserved = 0 if plan.n_tokens > n_people or not bulk else n_unserved + 1
            assert n_unserved <= OWN_TURN_EVERY
    for start in range(len(stretched) - OWN_TURN_EVERY):
        assert sum(stretched[start : start + OWN_TURN_EVERY]) <= 1


@pytest.mark.parametrize("bulk", [ROW, PROMPT])
def test_what_was_learnt_on_a_busy_machine_is_unlearnt_beside_bulk(bulk: Demand) -> None:
    pace, quick = Machine(60.0, 20.0, 20.0).learnt(), Machine(6.0, 5.0, 5.0)
    yielding = Yielding()
    for _ in range(1000):
        room = yielding.room(pace.least_ms(1, 0), is_awaited=False)
        yielding.took_turn() if room.must_serve else yielding.passed()
        quick.teach(pace, with_bulk(Plan((ROW,)), [bulk] * 4, room, pace, **BESIDE))
    assert pace.expected_ms(1, 0) == pytest.approx(11.0, rel=0.1)


def test_a_row_is_taken_to_cost_its_full_share_until_more_is_known() -> None:
    cost = RowCost()
    assert (cost.row_ms, cost.expected_ms(3), cost.expected_ms(0)) == (0.0, 0.0, 0.0)
    cost.observe(2, 20.0)
    assert (cost.row_ms, cost.expected_ms(4)) == (10.0, 40.0)
    for _ in range(20):
        cost.observe(2, 20.0)
        cost.observe(6, 40.0)
    assert cost.row_ms == pytest.approx(5.0, rel=0.02)
    assert cost.expected_ms(4) == pytest.approx(30.0, rel=0.02)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.01, 5000.0)), min_size=1, max_size=50))
def test_a_row_never_costs_less_than_nothing_nor_more_than_its_share(measured: list[tuple[int, float]]) -> None:
    cost = RowCost()
    for n_rows, elapsed_ms in measured:
        cost.observe(n_rows, elapsed_ms)
    assert cost.row_ms >= 0
    assert cost.expected_ms(1) <= cost.expected_ms(64)
    assert cost.expected_ms(1) >= -1e-6
