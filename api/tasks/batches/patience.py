"""How long is waited for what the store seems to have lost of a batch, before the batch ends without it.

This process may be the one that is wrong: with another store than the others have, or with a folder that nobody has
mounted yet. What is remembered here is of this process, and may be lost.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from shared.batches import Batch

PATIENCE_S = 600.0
"""From the first time that it is missed, and from when the batch should stop."""

N_BATCHES = 1000
"""That are remembered."""


class Patience:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._missed_at: OrderedDict[str, float] = OrderedDict()

    def is_over(self, batch: Batch, now: float) -> bool:
        """Of a batch of which something is missing; `now` is the bus's."""
        missed_s = self._clock() - self._missed_at.setdefault(batch.id, self._clock())
        while len(self._missed_at) > N_BATCHES:
            self._missed_at.popitem(last=False)
        return min(missed_s, now - _stops_at(batch)) >= PATIENCE_S

    def forget(self, batch_id: str) -> None:
        """All of the batch is there, or it has ended."""
        self._missed_at.pop(batch_id, None)


def _stops_at(batch: Batch) -> float:
    """When no more of its lines may be fed; the bus's time."""
    return min(at for at in (batch.expires_at, batch.cancelling_at, batch.finalizing_at) if at is not None)
