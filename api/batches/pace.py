"""How fast a batch gets on, and when it will be done at that pace: measured over the last half minute. Pure.

Lines are counted when their records have been written, and that is done in steps that grow with a batch's age. So a
rate goes from one step to another, never to a moment between them.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Self

from shared.batches import Batch

WINDOW_S = 30.0


class Count(NamedTuple):
    """How far a batch was."""

    at: float
    """Unix seconds."""
    lines: int
    """Planned ones that have been done, for good or bad."""
    tokens: int
    """That they made."""

    @classmethod
    def of(cls, batch: Batch, at: float) -> Self:
        return cls(at, batch.n_records - batch.n_bad, batch.usage.output_tokens)


class Rate(NamedTuple):
    """In a second."""

    lines: float
    tokens: float


class Pace:
    """What is known of one batch's. Begins with its average from its start."""

    def __init__(self, batch: Batch) -> None:
        self._counts: deque[Count] = deque()
        if batch.in_progress_at is not None:
            self._counts.append(Count(batch.in_progress_at, 0, 0))

    def note(self, batch: Batch, at: float) -> None:
        """How it stands at a time, which never lies before the last one."""
        count = Count.of(batch, at)
        if batch.in_progress_at is None or (self._counts and self._counts[-1][1:] == count[1:]):
            return
        self._counts.append(count)
        # The first one that is left is the last from before the window.
        while len(self._counts) > 2 and self._counts[1].at <= at - WINDOW_S:
            self._counts.popleft()

    def rate(self, at: float) -> Rate | None:
        """At a time; None while nothing has been done."""
        if len(self._counts) < 2:
            return None
        first, last = self._counts[0], self._counts[-1]
        elapsed_s = last.at - first.at
        if at - last.at > elapsed_s:
            elapsed_s = at - first.at  # nothing new for longer than all of that took: it has become slower
        if elapsed_s <= 0:
            return None
        return Rate((last.lines - first.lines) / elapsed_s, (last.tokens - first.tokens) / elapsed_s)


def average(batch: Batch, at: float) -> Rate | None:
    """Since its start: what one look can tell."""
    pace = Pace(batch)
    pace.note(batch, at)
    return pace.rate(at)


def eta_s(batch: Batch, rate: Rate | None) -> float | None:
    """Seconds until a batch's last line is done; None when nobody can say."""
    if batch.is_stopping or rate is None or rate.lines <= 0:
        return None
    return (batch.n_total - batch.n_records) / rate.lines
