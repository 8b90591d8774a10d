"""Whose turn it is, of several sets of adapters that cannot go into one batch.

Each goes on for a while before it is another's turn, since llama.cpp plans its memory anew for another set, which costs
as much as some milliseconds of decoding.

Pure. Knows nothing of what a set is, of sequences or of batches.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Turns(Generic[K]):
    """In order of arrival, again and again.

    Bound: of k that want something, each has a turn after at most k - 1 of others, whoever comes later, and waits for
    it no longer than `pause_s` and one decode of each of those. The fewer there are, the longer a turn is, and the less
    is lost between turns.
    """

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._current: K | None = None
        self._began_at = 0.0
        self._waiting: dict[K, float] = {}
        """The others that want something, and since when; who waits the longest is first."""

    def next(self, wanting: Collection[K], now: float) -> K:
        """Who is to have the next decode. `wanting`: one or more, each once; `now`: monotonic seconds."""
        self._waiting = {each: since for each, since in self._waiting.items() if each in wanting}
        for each in wanting:
            if each != self._current:
                self._waiting.setdefault(each, now)
        if self._current is None or self._current not in wanting or self._is_over(now):
            following = next(iter(self._waiting))
            del self._waiting[following]
            if self._current is not None and self._current in wanting:
                self._waiting[self._current] = now
            self._current, self._began_at = following, now
        return self._current

    def _is_over(self, now: float) -> bool:
        """All others have to have their turns within a pause; the next one has waited for a whole one at most."""
        if not self._waiting:
            return False
        since = next(iter(self._waiting.values()))
        return now >= min(self._began_at + self._pause_s / len(self._waiting), since + self._pause_s)
