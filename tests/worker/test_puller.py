"""How much a worker takes on."""

from __future__ import annotations

import pytest

from worker.puller import bulk_window


@pytest.mark.parametrize(("n_waiting", "window"), [(0, 1), (4, 1), (8, 2), (20, 5), (32, 8), (10_000, 8)])
def test_the_window_beyond_the_slots_shrinks_with_the_backlog(n_waiting: int, window: int) -> None:
    assert bulk_window(n_waiting, n_slots=8) == window
