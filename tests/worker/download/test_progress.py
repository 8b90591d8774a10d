"""What is shown of a download."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from worker.download.progress import Display


def test_files_count_alike_and_the_share_that_is_done_is_told() -> None:
    heard: list[float] = []
    with Display(2, heard.append) as display:
        for index in range(2):
            gauge = display.gauge(index, f"{index}.gguf")
            gauge.show(0, None)
            gauge.show(50, 100)
            gauge.show(100, 100)
    assert heard == [0.0, 0.25, 0.5, 0.5, 0.75, 1.0]


def test_a_log_gets_a_line_at_once_and_no_more_for_a_while() -> None:
    with capture_logs() as lines, Display(1, lambda _: None) as display:
        for done in range(0, 200_000_001, 1_000_000):
            display.gauge(0, "m.gguf").show(done, 200_000_000)
    assert [(line["event"], line["file"], line["mb"], line["percent"]) for line in lines] == [
        ("downloading", "m.gguf", 0, 0)
    ]


def test_who_waits_for_another_says_so_and_draws_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with capture_logs() as lines, Display(1, lambda _: None, has_bar=True) as display:
        display.gauge(0, "m.gguf").show(1_000_000, None, is_waiting=True)
    assert [line["event"] for line in lines] == ["another worker downloads"]
    assert capsys.readouterr().err == ""


def test_a_person_sees_a_bar_and_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with capture_logs() as lines, Display(1, lambda _: None, has_bar=True) as display:
        display.gauge(0, "m.gguf").show(5_000_000, 10_000_000)
    assert lines == []
    assert "m.gguf" in capsys.readouterr().err
