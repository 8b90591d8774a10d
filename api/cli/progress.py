"""How far a run is, for people: a moving bar on a terminal, else a plain line every two seconds.

Knows counts and a clock; nothing of files or HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, Progress, TextColumn

WINDOW_S = 15.0
"""Rates are over so many seconds: long enough to be calm, short enough to be about now."""

LEAST_DONE, LEAST_SHARE_DONE = 100, 0.05
"""Lines, or the part of all, before which the time left is a guess that leaps: the first ones come in a bunch."""

FREE_COLUMNS = 6
"""Right of the bar: a terminal echoes ^C there, and a line that wraps can not be drawn over."""


class Snapshot(NamedTuple):
    """What is shown. Rates and the time left are None while nothing is known of them."""

    done: int
    total: int
    failed: int
    tokens_per_second: float | None
    left_s: float | None
    trouble: str | None = None
    stage: str = ""
    """What is done before or after lines are."""


@dataclass(slots=True)
class Meter:
    """Rates from counts that only grow, noted now and then."""

    total: int
    clock: Callable[[], float] = time.monotonic
    _notes: deque[tuple[float, int, int]] = field(default_factory=deque)

    def note(self, done: int, failed: int, tokens: int, trouble: str | None = None) -> Snapshot:
        now = self.clock()
        self._notes.append((now, done, tokens))
        while len(self._notes) > 2 and self._notes[1][0] <= now - WINDOW_S:
            self._notes.popleft()
        then, done_then, tokens_then = self._notes[0]
        passed = now - then
        lines_per_second = (done - done_then) / passed if passed > 0 else 0.0
        tokens_per_second = max(0, tokens - tokens_then) / passed if passed > 0 else None
        is_known = lines_per_second > 0 and done >= min(LEAST_DONE, self.total * LEAST_SHARE_DONE)
        left_s = (self.total - done) / lines_per_second if is_known else None
        return Snapshot(done, self.total, failed, tokens_per_second, left_s, trouble)


class Display(Protocol):
    def show(self, snapshot: Snapshot) -> None: ...

    def close(self) -> None: ...


class PlainDisplay:
    """A line every `every_s` seconds when it says something new, and one at the end."""

    def __init__(self, write: Callable[[str], None], *, every_s: float = 2.0) -> None:
        self._write = write
        self._every_s = every_s
        self._next = 0.0
        self._shown = ""
        self._last: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every_s
            self._say(snapshot)

    def close(self) -> None:
        if self._last is not None:
            self._say(self._last)

    def _say(self, snapshot: Snapshot) -> None:
        text = plain_line(snapshot)
        if text != self._shown:
            self._shown = text
            self._write(text)


class BarDisplay:
    """A bar on a terminal that moves in place."""

    def __init__(self, console: Console, *, total: int) -> None:
        self._progress = _NarrowProgress(
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("[red]{task.fields[failed]}"),
            TextColumn("[cyan]{task.fields[speed]}"),
            TextColumn("{task.fields[left]}"),
            TextColumn("[yellow]{task.fields[trouble]}"),
            console=console,
            refresh_per_second=5,
        )
        self._task = self._progress.add_task("", total=total, failed="", speed="", left="", trouble="")
        self._progress.start()

    def show(self, snapshot: Snapshot) -> None:
        self._progress.update(
            self._task,
            completed=snapshot.done,
            failed=f"{snapshot.failed} failed" if snapshot.failed else "",
            speed=_speed(snapshot.tokens_per_second),
            left=snapshot.stage or _left(snapshot),
            trouble=(snapshot.trouble or "")[:60].replace("[", "("),
        )

    def close(self) -> None:
        self._progress.stop()


class _NarrowProgress(Progress):
    def get_renderable(self) -> RenderableType:
        return _Narrow(super().get_renderable())


@dataclass(frozen=True, slots=True)
class _Narrow:
    """Leaves `FREE_COLUMNS` at the right, without so much as a space written there."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.content, options.update_width(max(1, options.max_width - FREE_COLUMNS)))


@asynccontextmanager
async def shown(display: Display, look: Callable[[], Snapshot], *, every_s: float = 0.25) -> AsyncIterator[None]:
    """Keep a display up to date while the body runs, and once more at its end."""

    async def keep() -> None:
        while True:
            display.show(look())
            await asyncio.sleep(every_s)

    keeper = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper
        display.show(look())
        display.close()


def plain_line(snapshot: Snapshot) -> str:
    parts = [f"{snapshot.done}/{snapshot.total} done"]
    if snapshot.failed:
        parts.append(f"{snapshot.failed} failed")
    parts += filter(None, (snapshot.stage, _speed(snapshot.tokens_per_second), _left(snapshot)))
    if snapshot.trouble:
        parts.append(f"waiting: {snapshot.trouble}")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """`8 s`, `3 min 20 s`, `2 h 5 min`: as exact as it is useful."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _speed(tokens_per_second: float | None) -> str:
    return "" if tokens_per_second is None else f"{tokens_per_second:.0f} tokens/s"


def _left(snapshot: Snapshot) -> str:
    if snapshot.left_s is None or snapshot.done == snapshot.total:
        return ""
    return f"{duration(snapshot.left_s)} left"
