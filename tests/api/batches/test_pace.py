"""How fast a batch gets on."""

from __future__ import annotations

import pytest

from api.batches.pace import Pace, average, eta_s
from shared.batches import Batch, BatchStatus, Usage

START = 1000.0
BATCH = Batch(
    id="batch_0_0",
    tenant="t",
    endpoint="*",
    input_file_id="f",
    completion_window="1h",
    window_s=3600,
    status=BatchStatus.IN_PROGRESS,
    in_progress_at=START,
    n_total=120,
    n_planned=100,
    n_failed=20,
)
"""Twenty of its lines are bad: they count as failed from the start, and were no work."""


def done(lines: int, tokens: int = 0) -> Batch:
    return BATCH.model_copy(update={"n_completed": lines, "usage": Usage(output_tokens=tokens)})


def test_one_look_tells_the_average_since_the_start() -> None:
    rate = average(done(30, tokens=300), START + 60)
    assert rate == (0.5, 5.0)
    assert eta_s(done(30), rate) == 140


def test_nothing_done_is_no_rate() -> None:
    assert average(BATCH, START + 60) is None
    assert average(BATCH.model_copy(update={"in_progress_at": None}), START + 60) is None
    assert eta_s(BATCH, None) is None


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    pace = Pace(BATCH)
    for second in range(61):  # a line a second, then two
        pace.note(done(second if second <= 20 else 20 + 2 * (second - 20)), START + second)
    assert pace.rate(START + 60) == (2.0, 0)


def test_steps_that_are_far_apart_do_not_look_like_standstill_and_rush() -> None:
    pace, rates = Pace(BATCH), []
    for second in range(0, 361, 5):  # a line a second, counted once a minute
        pace.note(done(second // 60 * 60), START + second)
        rates.append(pace.rate(START + second))
    assert {rate.lines for rate in rates[12:] if rate} == {1.0}


def test_a_standstill_shows_in_the_end() -> None:
    pace = Pace(BATCH)
    pace.note(done(10), START + 10)
    assert pace.rate(START + 20) == (1.0, 0)
    rate = pace.rate(START + 100)
    assert rate is not None and rate.lines == pytest.approx(0.1)


@pytest.mark.parametrize("at", [START, START - 5], ids=["the same moment", "a clock that is behind"])
def test_clocks_that_disagree_do_no_harm(at: float) -> None:
    rate = average(done(10), at)
    assert rate is None or rate.lines > 0


@pytest.mark.parametrize("status", [BatchStatus.CANCELLING, BatchStatus.FINALIZING, BatchStatus.COMPLETED])
def test_a_batch_that_takes_no_more_lines_has_no_estimate(status: BatchStatus) -> None:
    stopping = done(30).model_copy(update={"status": status})
    assert eta_s(stopping, average(stopping, START + 60)) is None
