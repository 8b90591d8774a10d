from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.plan import MIN_PREFILL, TARGET_MS, TARGET_UNHURRIED_MS, Pace, fair_shares, plan_batch


@dataclass(frozen=True)
class Demand:
    n_wanted: int
    is_generating: bool = False


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
    assert pace.prefill_budget(0) == pytest.approx(TARGET_UNHURRIED_MS / 2.0, abs=2)


def test_prefill_never_stands_still() -> None:
    pace = Pace(n_batch=2048)
    pace.observe(64, 0, 4000.0)
    pace.observe(64, 64, 9000.0)
    assert pace.prefill_budget(64) == MIN_PREFILL


def test_a_quick_machine_fills_the_batch() -> None:
    pace = Pace(n_batch=2048)
    pace.observe(0, 512, 5.0)
    assert pace.prefill_budget(8) == 2048
