"""Stands for the tasks processes: takes batches through their steps on the real bus and store, as a test says it.

It reads no file: how many lines there are, and what is recorded of them, is the test's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from shared.batches import Batch, LineFault, Segment, Usage, line_job_id, segment_pieces
from shared.bus import Bus
from shared.bus.batchsteps import FedLine, Refusal
from shared.bus.holds import Hold
from shared.store import Store

KEPT_S = 3600.0


def record(custom_id: str, *, text: str = "", status: int = 200) -> dict[str, Any]:
    """Of a line that was answered."""
    response = {"status_code": status, "request_id": None, "body": {"text": text}}
    return {"id": f"batch_req_{custom_id}", "custom_id": custom_id, "response": response, "error": None}


class ScriptedTasks:
    def __init__(self, bus: Bus, store: Store) -> None:
        self._batches = bus.batches
        self._store = store
        self._holds: dict[str, Hold] = {}

    async def begin(self, batch_id: str, n_lines: int, bad: Sequence[dict[str, Any]] = ()) -> None:
        """Plans `n_lines` besides the `bad` ones, of which there are records, and sends all on their way."""
        hold = await self._hold(batch_id)
        segment = await self._segment(hold, 0, (), bad) if bad else None
        assert await self._batches.planned(
            hold,
            n_total=n_lines + len(bad),
            n_planned=n_lines,
            faults=[LineFault(code="bad", message="it is bad", line=number) for number in range(1, len(bad) + 1)],
            segment=segment,
        )
        lines = [
            FedLine(None, place, place + 1, Refusal(line_job_id(batch_id, place + 1), "a record"))
            for place in range(n_lines)
        ]
        assert (await self._batches.feed(hold, lines)).n_fed == n_lines

    async def write(self, batch_id: str, outputs: Sequence[Any] = (), errors: Sequence[Any] = ()) -> None:
        """Records of lines come to stand in the next segment. Each makes a token."""
        hold, batch = await self._hold(batch_id), await self._record(batch_id)
        segment = await self._segment(hold, batch.n_segments, outputs, errors)
        flights = await self._batches.flights(batch_id)
        assert await self._batches.collect(
            hold,
            segment,
            job_ids=flights[: len(outputs) + len(errors)],
            n_completed=len(outputs),
            n_failed=len(errors),
            usage=Usage(output_tokens=len(outputs)),
        )

    async def end(self, batch_id: str) -> Batch:
        """When every line has been written."""
        hold = await self._hold(batch_id)
        assert await self._batches.finalize(hold, "over")
        assert await self._batches.finish(hold, KEPT_S)
        return await self._record(batch_id)

    async def reject(self, batch_id: str) -> None:
        hold = await self._hold(batch_id)
        assert await self._batches.reject(hold, [LineFault(code="empty", message="there is nothing in it")], KEPT_S)

    async def _hold(self, batch_id: str) -> Hold:
        if batch_id not in self._holds:
            [epoch] = [due.epoch for due in await self._batches.due() if due.batch_id == batch_id]
            hold = await self._batches.hold(batch_id, epoch, 600.0)
            assert hold is not None
            self._holds[batch_id] = hold
        return self._holds[batch_id]

    async def _record(self, batch_id: str) -> Batch:
        batch = await self._batches.record(batch_id)
        assert batch is not None
        return batch

    async def _segment(self, hold: Hold, number: int, outputs: Sequence[Any], errors: Sequence[Any]) -> Segment:
        files = [b"".join(json.dumps(each).encode() + b"\n" for each in records) for records in (outputs, errors)]
        segment = Segment(
            number=number,
            n_output=len(outputs),
            output_bytes=len(files[0]),
            n_error=len(errors),
            error_bytes=len(files[1]),
        )
        for piece, data in zip(segment_pieces(hold.batch_id, segment), files, strict=True):
            if data:
                await self._store.put(piece.name, data)
        return segment
