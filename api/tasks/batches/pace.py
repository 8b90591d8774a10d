"""When the ended lines of a batch become a segment: when they are many, or when the last segment is some time ago.

Early on that is a second, so that who watches a batch sees its first results at once; later ever more, so that a batch
of days does not fall to ten thousands of small objects. What is remembered here is of this process, and may be lost.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from shared.batches import Batch
from shared.bus import MAX_COLLECTED

SHORTEST_S, LONGEST_S = 1.0, 60.0
OF_AGE = 10
"""Of a batch's age this part may pass between two segments."""
SEGMENTS_PER_S = 10
"""Each of so many segments lengthens the interval by a second, beyond LONGEST_S too."""

LOST_EVERY_S = 30.0
"""Between two looks for jobs that have vanished: they should not, and to find them costs a look at each."""

SHARE = 4
"""When this part of what is on its way has ended it is collected, as there may be no room for others before."""

N_BATCHES = 1000
"""That are remembered."""


class Pace:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._collected_at = _Times()
        self._counted_at = _Times()

    def interval_s(self, batch: Batch, now: float) -> float:
        """Between two segments; `now` is the bus's."""
        of_age = min(LONGEST_S, max(SHORTEST_S, (now - batch.created_at) / OF_AGE))
        return max(of_age, batch.n_segments / SEGMENTS_PER_S)

    def enough(self, batch: Batch) -> int:
        """Ended lines that become a segment at once."""
        are_last = batch.is_stopping or batch.n_fed == batch.n_planned
        return max(1, min(MAX_COLLECTED, batch.n_in_flight if are_last else batch.n_in_flight // SHARE))

    def is_time_to_collect(self, batch: Batch, now: float) -> bool:
        """Always when the batch's time is over: what has ended until then counts."""
        since_s = self._clock() - self._collected_at.of(batch.id)
        return since_s >= self.interval_s(batch, now) or now >= batch.expires_at

    def collected(self, batch_id: str) -> None:
        self._collected_at.set(batch_id, self._clock())

    def is_time_to_count(self, batch_id: str) -> bool:
        """Whether to look for jobs that have vanished. The first time is some time after a batch was first seen."""
        last, now = self._counted_at.of(batch_id), self._clock()
        if last == 0.0 or now - last >= LOST_EVERY_S:
            self._counted_at.set(batch_id, now)
        return last != 0.0 and now - last >= LOST_EVERY_S

    def forget(self, batch_id: str) -> None:
        self._collected_at.pop(batch_id, None)
        self._counted_at.pop(batch_id, None)


class _Times(OrderedDict[str, float]):
    def of(self, batch_id: str) -> float:
        """0 when nothing is known."""
        return self.get(batch_id, 0.0)

    def set(self, batch_id: str, at: float) -> None:
        self[batch_id] = at
        self.move_to_end(batch_id)
        while len(self) > N_BATCHES:
            self.popitem(last=False)
