"""How prompts get on."""

from __future__ import annotations

from api.schemas.progress import ProgressReport
from shared.events import Progress


def progress(processed: int, *, cache: int = 2) -> Progress:
    return Progress(total=9, cache=cache, processed=processed, time_ms=float(processed))


def told(report: ProgressReport, index: int, *steps: Progress) -> list[tuple[int, int]]:
    """Tokens in the cache at first, and tokens by now."""
    chunks = [chunk["prompt_progress"] for step in steps for chunk in report.push(index, step)]
    return [(chunk["cache"], chunk["processed"]) for chunk in chunks]


def test_first_comes_what_was_in_the_cache_and_then_more_each_time() -> None:
    report = ProgressReport(has_timings=False)
    assert told(report, 0, progress(4), progress(4), progress(9)) == [(2, 2), (2, 4), (2, 9)]
    assert told(report, 1, progress(0, cache=0), progress(9, cache=0)) == [(0, 0), (0, 9)]


def test_an_attempt_that_begins_anew_says_nothing_twice() -> None:
    report = ProgressReport(has_timings=False)
    again = [progress(3, cache=0), progress(6, cache=0), progress(9, cache=0)]
    assert [processed for _, processed in told(report, 0, progress(6), *again)] == [2, 6, 9]


def test_timings_begin_with_nothing_computed() -> None:
    first, second = ProgressReport(has_timings=True).push(0, progress(6))
    assert (first["timings"]["prompt_n"], first["timings"]["prompt_ms"]) == (0, 0)
    assert (second["timings"]["prompt_n"], second["timings"]["cache_n"], second["timings"]["prompt_ms"]) == (4, 2, 6)
    assert "timings" not in ProgressReport(has_timings=False).push(0, progress(6))[0]
