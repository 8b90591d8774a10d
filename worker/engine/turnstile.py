"""Lets one thread through at a time: those who work for people first, and bulk after so many of them.

Knows nothing of what is done behind it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

MOST_BEFORE_BULK = 16
"""People that go before bulk while it waits."""


class Turnstile:
    """For any thread; not to be entered twice by one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Below: under the condition's lock.
        self._is_taken = False
        self._n_waiting = {False: 0, True: 0}
        """Of people, and of bulk."""
        self._n_passed = 0
        """People who went through since bulk did."""

    @contextlib.contextmanager
    def turn(self, *, is_bulk: bool = False) -> Iterator[None]:
        """Waits for a turn, which lasts as long as the block."""
        with self._changed:
            self._n_waiting[is_bulk] += 1
            self._changed.wait_for(lambda: not self._is_taken and self._is_next(is_bulk=is_bulk))
            self._n_waiting[is_bulk] -= 1
            self._n_passed = 0 if is_bulk else self._n_passed + 1
            self._is_taken = True
        try:
            yield
        finally:
            with self._changed:
                self._is_taken = False
                self._changed.notify_all()

    def _is_next(self, *, is_bulk: bool) -> bool:
        is_for_bulk = self._n_passed >= MOST_BEFORE_BULK
        return is_bulk is is_for_bulk or not self._n_waiting[not is_bulk]
