"""Lets one thread through at a time, in the order in which they come: those who work for people first, and bulk after
so many of them.

Knows nothing of what is done behind it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

MOST_BEFORE_BULK = 16
"""People that go before bulk while it waits."""


class Turnstile:
    """For any thread; not to be entered twice by one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Below: under the condition's lock.
        self._is_taken = False
        self._people: deque[object] = deque()
        self._bulk: deque[object] = deque()
        """Tickets of those who wait."""
        self._n_passed = 0
        """People who went through since bulk did."""

    @contextlib.contextmanager
    def turn(self, *, is_bulk: bool = False) -> Iterator[None]:
        """Waits for a turn, which lasts as long as the block."""
        ticket, line = object(), self._bulk if is_bulk else self._people
        with self._changed:
            line.append(ticket)
            self._changed.wait_for(lambda: not self._is_taken and self._next() is ticket)
            line.popleft()
            self._n_passed = 0 if is_bulk else self._n_passed + 1
            self._is_taken = True
        try:
            yield
        finally:
            with self._changed:
                self._is_taken = False
                self._changed.notify_all()

    def _next(self) -> object:
        """The ticket of whoever is next; there is one."""
        is_for_bulk = not self._people or (self._bulk and self._n_passed >= MOST_BEFORE_BULK)
        return self._bulk[0] if is_for_bulk else self._people[0]
