"""SIGINT and SIGTERM for commands that have something to put away. Knows nothing of what that is."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, Self


class Interruption:
    """Cancels the current task at the first SIGINT or SIGTERM and swallows that at its end; the second leaves at once.

    with Interruption(on_first=tell) as interruption:
        interruption.at_once = supervisor.leave  # called before leaving at once
        ...                                      # CancelledError comes out of an await here
    interruption.exit_code                       # 130 or 143; None when no signal came
    """

    def __init__(self, *, on_first: Callable[[signal.Signals], None]) -> None:
        self.at_once: Callable[[], None] = lambda: None
        self._on_first = on_first
        self._signal: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._arrived, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(number)
        is_ours = kind is not None and issubclass(kind, asyncio.CancelledError) and self._signal is not None
        if is_ours:
            self._task.uncancel()
        return is_ours

    @property
    def exit_code(self) -> int | None:
        return None if self._signal is None else 128 + self._signal

    def _arrived(self, number: signal.Signals) -> None:
        if self._signal is not None:
            self._leave(number)
        self._signal = number
        self._on_first(number)
        self._task.cancel()

    def _leave(self, number: signal.Signals) -> NoReturn:
        self.at_once()
        os._exit(128 + number)
