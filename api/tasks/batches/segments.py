"""A segment in the making: records of lines until they are enough, then two objects in the store and a word to the bus.

The objects come first: what the bus knows of is there.
"""

from __future__ import annotations

from api.tasks.batches.records import Said
from shared.batches import Segment, Usage, segment_pieces
from shared.bus import MAX_COLLECTED, Bus, Hold, Unfed
from shared.store import Store

FULL_BYTES = 4_000_000
"""Of records. One more may come to it, however large."""


class Draft:
    def __init__(self) -> None:
        self._outputs: list[bytes] = []
        self._errors: list[bytes] = []
        self._usage = Usage()
        self._job_ids: list[str] = []
        self._unfed: Unfed | None = None
        self._n_bytes = 0

    def __len__(self) -> int:
        """Lines."""
        return len(self._outputs) + len(self._errors)

    @property
    def is_full(self) -> bool:
        return self._n_bytes >= FULL_BYTES or len(self._job_ids) >= MAX_COLLECTED

    def add(self, job_id: str, said: Said) -> None:
        """Of a line that was fed."""
        self._job_ids.append(job_id)
        self._put(said)

    def add_unfed(self, start: int, stop: int, said: Said) -> None:
        """Of the next line of the plan, and where it is there."""
        before = self._unfed or Unfed(0, start, start)
        self._unfed = Unfed(before.n_lines + 1, before.start, stop)
        self._put(said)

    def _put(self, said: Said) -> None:
        (self._errors if said.is_failed else self._outputs).append(said.record)
        self._n_bytes += len(said.record) + 1
        self._usage += said.usage

    async def keep(self, bus: Bus, store: Store, hold: Hold, number: int) -> bool:
        """As the segment of that number. False: there is nothing to keep, it is not the next one, or the hold was lost;
        nothing was counted. Raises StoreUnavailable and BusUnavailable."""
        if not len(self):
            return False
        outputs, errors = _lines(self._outputs), _lines(self._errors)
        segment = Segment(
            number=number,
            mark=hold.mark,
            n_output=len(self._outputs),
            output_bytes=len(outputs),
            n_error=len(self._errors),
            error_bytes=len(errors),
        )
        for piece, content in zip(segment_pieces(hold.batch_id, segment), (outputs, errors), strict=True):
            if content:
                await store.put(piece.name, content)
        return await bus.batches.collect(
            hold,
            segment,
            job_ids=self._job_ids,
            n_completed=len(self._outputs),
            n_failed=len(self._errors),
            usage=self._usage,
            unfed=self._unfed,
        )


def _lines(records: list[bytes]) -> bytes:
    return b"".join(record + b"\n" for record in records)
