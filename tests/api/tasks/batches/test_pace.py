from __future__ import annotations

from typing import Any

import pytest

from api.tasks.batches.pace import LOST_EVERY_S, Pace
from shared.batches import Batch, BatchStatus
from shared.bus import MAX_COLLECTED


def batch(**fields: Any) -> Batch:
    given = {
        "id": "batch_0_" + "0" * 24,
        "tenant": "t",
        "endpoint": "*",
        "input_file_id": "f",
        "completion_window": "24h",
        "window_s": 86400,
        "status": BatchStatus.IN_PROGRESS,
        "created_at": 1000.0,
        "expires_at": 90_000.0,
        "n_planned": 10_000,
        "n_fed": 1000,
        "n_in_flight": 1000,
    }
    return Batch.model_validate(given | fields)


@pytest.mark.parametrize(
    ("age_s", "n_segments", "interval_s"),
    [(0, 0, 1), (10, 10, 1), (100, 50, 10), (600, 100, 60), (86400, 100, 60), (86400, 2000, 200)],
)
def test_segments_come_each_second_at_first_and_ever_less_often(
    age_s: float, n_segments: int, interval_s: float
) -> None:
    assert Pace().interval_s(batch(n_segments=n_segments), 1000 + age_s) == interval_s


def test_a_month_of_segments_is_no_more_than_some_thousands() -> None:
    pace, now, n_segments = Pace(), 1000.0, 0
    while now < 1000 + 30 * 86400:
        now += pace.interval_s(batch(n_segments=n_segments), now)
        n_segments += 1
    assert n_segments < 10_000


@pytest.mark.parametrize(
    ("fields", "enough"),
    [
        ({}, 250),
        ({"n_in_flight": 10}, 2),
        ({"n_in_flight": 1}, 1),
        ({"n_in_flight": 100_000}, MAX_COLLECTED),
        ({"n_fed": 10_000, "n_in_flight": 40}, 40),
        ({"status": BatchStatus.CANCELLING, "n_in_flight": 40}, 40),
    ],
)
def test_so_many_are_enough_that_others_find_room_and_the_last_ones_all(fields: dict[str, Any], enough: int) -> None:
    assert Pace().enough(batch(**fields)) == enough


def test_the_first_is_collected_at_once_and_the_next_when_it_is_time() -> None:
    now = 5000.0
    pace = Pace(lambda: now)
    assert pace.is_time_to_collect(batch(), 1000)
    pace.collected(batch().id)
    assert not pace.is_time_to_collect(batch(), 1000)
    assert pace.is_time_to_collect(batch(), 90_000)  # its window is over
    now += 1.0
    assert pace.is_time_to_collect(batch(), 1001)


def test_it_is_counted_now_and_then_but_not_at_first_sight() -> None:
    now = 5000.0
    pace = Pace(lambda: now)
    assert not pace.is_time_to_count("b")
    now += LOST_EVERY_S
    assert pace.is_time_to_count("b")
    assert not pace.is_time_to_count("b")
