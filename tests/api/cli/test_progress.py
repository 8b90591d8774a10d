from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from api.cli.progress import FREE_COLUMNS, WINDOW_S, BarDisplay, Meter, PlainDisplay, Snapshot, duration, plain_line


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rates_are_about_now_and_the_time_left_follows_them() -> None:
    clock = Clock()
    meter = Meter(total=100, clock=clock)
    first = meter.note(0, 0, 0)
    assert (first.tokens_per_second, first.left_s) == (None, None)
    clock.now += 10
    assert meter.note(10, 0, 500)[3:5] == (50.0, 90.0)
    for _ in range(10):  # five times as fast from here on: what was before is forgotten
        clock.now += WINDOW_S / 5
        last = meter.note(10, 0, 500)
    assert (last.tokens_per_second, last.left_s) == (0.0, None)


@pytest.mark.parametrize(("total", "enough"), [(100, 5), (1_000_000, 100), (3, 1)])
def test_the_time_left_is_not_told_by_the_first_few_lines(total: int, enough: int) -> None:
    clock = Clock()
    meter = Meter(total=total, clock=clock)
    meter.note(0, 0, 0)
    clock.now += 1
    assert meter.note(enough - 1, 0, 0).left_s is None
    assert meter.note(enough, 0, 0).left_s == (total - enough) / enough


def test_a_resumed_run_does_not_count_what_was_done_before() -> None:
    clock = Clock()
    meter = Meter(total=100, clock=clock)
    meter.note(50, 2, 9000)
    clock.now += 1
    assert meter.note(51, 2, 9020)[3:5] == (20.0, 49.0)


def test_tokens_that_are_taken_back_are_no_negative_speed() -> None:
    clock = Clock()
    meter = Meter(total=2, clock=clock)
    meter.note(0, 0, 30)
    clock.now += 1
    assert meter.note(0, 0, 10).tokens_per_second == 0


@pytest.mark.parametrize(
    ("snapshot", "line"),
    [
        (Snapshot(0, 9, 0, None, None), "0/9 done"),
        (Snapshot(3, 9, 1, 12.4, 75.0), "3/9 done, 1 failed, 12 tokens/s, 1 min 15 s left"),
        (Snapshot(9, 9, 0, 12.4, 0.0), "9/9 done, 12 tokens/s"),
        (Snapshot(3, 9, 0, None, None, "it is full"), "3/9 done, waiting: it is full"),
    ],
)
def test_a_plain_line_says_what_is_known(snapshot: Snapshot, line: str) -> None:
    assert plain_line(snapshot) == line


def test_plain_lines_come_now_and_then_and_at_the_end_and_never_twice() -> None:
    lines: list[str] = []
    display = PlainDisplay(lines.append, every_s=3600)
    for done in range(5):
        display.show(Snapshot(done, 5, 0, None, None))
    display.close()
    display.close()
    assert lines == ["0/5 done", "4/5 done"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_bar_leaves_room_for_an_echo_and_may_be_closed_early(width: int) -> None:
    terminal = io.StringIO()
    display = BarDisplay(Console(file=terminal, force_terminal=True, width=width), total=9)
    display.show(Snapshot(3, 9, 1, 12.4, 75.0))
    display.close()
    shown = terminal.getvalue()
    display.show(Snapshot(4, 9, 1, 12.4, 75.0, "it is full"))
    display.close()
    assert terminal.getvalue() == shown
    lines = [cell_len(Text.from_ansi(text).plain) for text in shown.replace("\r", "\n").splitlines()]
    assert 0 < max(lines) <= width - FREE_COLUMNS
    assert shown.endswith("\x1b[?25h")  # the cursor is seen again


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")])
def test_durations_are_as_exact_as_useful(seconds: float, text: str) -> None:
    assert duration(seconds) == text
