"""How far a download is: a bar where a person looks on, else a line in the log every few seconds.

Knows files by name and number only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

LINE_EVERY_S = 5.0

log = structlog.get_logger(__name__)


class Gauge:
    """One file of those that a display shows."""

    def __init__(self, index: int, name: str, show: Callable[[Gauge, int, int | None, bool], None]) -> None:
        self.index, self.name = index, name
        self._show = show

    def show(self, done: int, total: int | None, *, is_waiting: bool = False) -> None:
        """Bytes. `is_waiting` while another process fetches it."""
        self._show(self, done, total, is_waiting)


class Display:
    """Shows all files of a model, one after the other, and tells `on_progress` the part that is done, 0 to 1."""

    def __init__(self, n_files: int, on_progress: Callable[[float], None], *, has_bar: bool = False) -> None:
        self._n_files, self._on_progress = n_files, on_progress
        self._bar = _Bar() if has_bar else None
        self._next_line = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def gauge(self, index: int, name: str) -> Gauge:
        return Gauge(index, name, self._show)

    def _show(self, gauge: Gauge, done: int, total: int | None, is_waiting: bool) -> None:
        # Each counts the same: parts of a model are cut to one size, and of a plain URL's file nothing is known before
        # its turn comes.
        share = min(1.0, done / total) if total else 0.0
        self._on_progress((gauge.index + share) / self._n_files)
        if self._bar is not None and not is_waiting:
            self._bar.show(gauge.name, done, total)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY_S
            log.info(
                "another worker downloads" if is_waiting else "downloading",
                file=gauge.name,
                mb=round(done / 1e6),
                of_mb=round(total / 1e6) if total else None,
                percent=round(100 * share) if total else None,
            )


class _Bar:
    """Of whoever fetches; one that waits draws none, since a terminal has one last line only."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, TaskID] = {}

    def show(self, name: str, done: int, total: int | None) -> None:
        if name not in self._tasks:
            self._progress.start()
            self._tasks[name] = self._progress.add_task(name, total=total, completed=done)
        self._progress.update(self._tasks[name], completed=done, total=total)

    def close(self) -> None:
        if self._tasks:
            self._progress.stop()
