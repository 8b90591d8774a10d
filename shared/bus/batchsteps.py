"""What is done with a batch between its making and its end, step by step, by who holds it.

Good lines stand in a plan. They are fed in its order, each with a move of the batch's cursor, end in any order, and are
collected into segments. Every write carries the hold, is one script, and may be said again. Knows no store: that the
plan and a segment's objects are there before they are told of here is the caller's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple, TypeVar

from shared.batches import (
    Batch,
    LineFault,
    Segment,
    Usage,
    error_file_id,
    output_file_id,
    segment_pieces,
)
from shared.bus.annex import Annex
from shared.bus.batchrecord import TRIES, WrittenFaults, write_segment
from shared.bus.connect import Command, Sender
from shared.bus.enqueuing import Enqueuing, PlanLine, Written
from shared.bus.holds import Hold, Holds
from shared.bus.keys import Keys
from shared.bus.script import ask, run, script
from shared.files import FileRecord, Piece, Purpose
from shared.jobs import Job, JobStatus, partition_of
from shared.settings import BusSettings

FED_AT_ONCE, BYTES_AT_ONCE = 100, 1_000_000
"""Lines in one round trip, and of the plan: others' commands wait for all of them."""

MAX_COLLECTED = 500
"""Lines with jobs that one `collect` takes: a script makes everybody wait."""

Thing = TypeVar("Thing")


class Refusal(NamedTuple):
    """Of a line that can be no job: it is collected as if it had been one."""

    job_id: str
    """That it would have had."""
    record: str
    """What is to be said of it; kept until then, and of any form."""


class FedLine(NamedTuple):
    """A line on its way out of the plan. Exactly one of `job` and `refusal` is set."""

    job: Job | None
    start: int
    stop: int
    """Where it is in the plan, in bytes."""
    refusal: Refusal | None = None


class Fed(NamedTuple):
    n_fed: int
    """Of the lines that were given, the first so many are on their way."""
    retry_after_s: float | None = None
    """The queue is full, and has room again about then."""
    is_held: bool = True
    """False: somebody else holds the batch. Else, when fewer were fed and the queue is not full, look at its record: it
    is being cancelled, its time is over, or the server has lost its last second, and with it where the batch was."""


class EndedLine(NamedTuple):
    """A line that can be collected."""

    job_id: str
    status: JobStatus | None
    """None: it was refused, or its job has vanished."""
    refusal: str | None = None


class Unfed(NamedTuple):
    """Lines that come next in the plan and will not be fed any more, for the batch stops."""

    n_lines: int
    start: int
    stop: int
    """Where they are in the plan, in bytes."""


class BatchSteps(Holds):
    def __init__(self, settings: BusSettings, keys: Keys, link: Sender, annex: Annex) -> None:
        super().__init__(keys, link)
        self._settings = settings
        self._annex = annex
        self._enqueuing = Enqueuing(settings, keys, link, annex)

    async def planned(
        self,
        hold: Hold,
        *,
        n_total: int,
        n_planned: int,
        faults: Sequence[LineFault] = (),
        segment: Segment | None = None,
        model: str | None = None,
    ) -> bool:
        """Lets a validated batch begin. `segment` is number 0, with the records of the lines that are not in the plan.

        False: the hold was lost, or the batch was cancelled. Raises BusUnavailable.
        """
        if n_total - n_planned != (segment.n_error if segment else 0):
            raise ValueError("each line is in the plan or has a record")
        arguments = (
            hold.token,
            n_total,
            n_planned,
            *WrittenFaults.of(faults),
            model or "",
            write_segment(segment) if segment else "",
        )
        return bool(await self._say("planned", hold.batch_id, (), arguments))

    async def reject(self, hold: Hold, faults: Sequence[LineFault], retention_s: float) -> bool:
        """Ends a batch of which no line can be run; its record stays for `retention_s`. False: the hold was lost, or it
        was cancelled. Raises BusUnavailable."""
        arguments = (
            self._keys.prefix_of_batch(hold.batch_id),
            hold.batch_id,
            hold.token,
            *WrittenFaults.of(faults),
            round(retention_s * 1000),
        )
        return bool(await self._say("reject", hold.batch_id, (), arguments))

    async def feed(self, hold: Hold, lines: Sequence[FedLine]) -> Fed:
        """Sends lines on their way that follow each other in the plan, the first no further than the batch's cursor;
        those that it is behind already count as fed.

        Stops at the first that is not taken. Saying all of it again changes nothing. Raises BusUnavailable: then some
        may have been fed, as the batch's record says.
        """
        if any(line.job is not None and line.job.batch != hold.batch_id for line in lines):
            raise ValueError(f"not all of these are lines of {hold.batch_id}")
        n_fed = 0
        for chunk in _chunks_of_plan(lines):
            told = await self._feed_together(hold, chunk)
            n_fed += told.n_fed
            if told.n_fed < len(chunk):
                return told._replace(n_fed=n_fed)
        return Fed(n_fed)

    async def ended(self, batch_id: str, limit: int = MAX_COLLECTED) -> list[EndedLine]:
        """Lines that can be collected, those that ended first in front. Raises BusUnavailable."""
        batch = self._keys.batch(batch_id)
        names = (f"{batch}:ended", f"{batch}:refused")
        call = script("batches/ended").call(names, (self._keys.prefix_of_batch(batch_id), limit))
        [rows] = await run(self._link, script("batches/ended"), [call], tries=TRIES)
        return [
            EndedLine(job_id.decode(), JobStatus(status.decode()) if status else None, refusal and refusal.decode())
            for job_id, status, refusal in rows
        ]

    async def flights(self, batch_id: str) -> list[str]:
        """Ids of the jobs of all lines that were fed and are not collected, in the order of the plan.

        Raises BusUnavailable.
        """
        [ids] = await ask(self._link, [("ZRANGE", f"{self._keys.batch(batch_id)}:flights", 0, -1)])
        return [job_id.decode() for job_id in ids]

    async def lost(self, batch_id: str) -> list[str]:
        """Those of them that will never end, for their jobs have vanished. It looks at all of them: for now and then.

        Raises BusUnavailable.
        """
        which, batch = script("batches/lost"), self._keys.batch(batch_id)
        found: list[str] = []
        first = 0
        while True:
            arguments = (self._keys.prefix_of_batch(batch_id), batch_id, first, MAX_COLLECTED)
            call = which.call((f"{batch}:flights", f"{batch}:ended"), arguments)
            [[n_looked_at, ids]] = await run(self._link, which, [call], tries=TRIES)
            found += [job_id.decode() for job_id in ids]
            first += n_looked_at
            if n_looked_at < MAX_COLLECTED:
                return found

    async def places(self, batch_id: str, job_ids: Sequence[str]) -> list[int | None]:
        """Where in the plan the lines of these jobs begin, in bytes; None of one that is not in flight.

        Raises BusUnavailable.
        """
        if not job_ids:
            return []
        [scores] = await ask(self._link, [("ZMSCORE", f"{self._keys.batch(batch_id)}:flights", *job_ids)])
        return [int(score) if score is not None else None for score in scores]

    async def recall(self, job_ids: Sequence[str]) -> None:
        """Ends those of the jobs that nobody has, and has the workers of the others stop. One whose worker died ends
        when it is called back after its lease. Raises BusUnavailable."""
        which, lease_ms = script("cancel"), round(self._settings.lease_s * 1000)
        for chunk in _chunks(job_ids):
            calls = [
                which.call((self._keys.job(each),), (self._keys.prefix_of(each), each, lease_ms)) for each in chunk
            ]
            await run(self._link, which, calls, tries=TRIES)

    async def collect(
        self,
        hold: Hold,
        segment: Segment,
        *,
        job_ids: Sequence[str],
        n_completed: int,
        n_failed: int,
        usage: Usage = Usage(),  # noqa: B008 - frozen
        unfed: Unfed | None = None,
    ) -> bool:
        """Counts the lines of a segment, whose objects are in the store, and forgets their jobs. All of the lines were
        ended or lost, but for those that are `unfed`.

        Saying the same again changes nothing, and is answered as before. False: the hold was lost, or the segment's
        number or lines are not those that the server knows now: begin anew. Raises BusUnavailable.
        """
        if len(job_ids) > MAX_COLLECTED:
            raise ValueError(f"{len(job_ids)} lines are more than the {MAX_COLLECTED} of one segment")
        if n_completed + n_failed != len(job_ids) + (unfed.n_lines if unfed else 0):
            raise ValueError("each line has succeeded or failed")
        if not job_ids and not unfed:
            raise ValueError("a segment has lines")
        batch = self._keys.batch(hold.batch_id)
        names = (f"{batch}:segments", f"{batch}:flights", f"{batch}:ended", f"{batch}:refused")
        unfed = unfed or Unfed(0, 0, 0)
        arguments: list[str | int] = [
            self._keys.prefix_of_batch(hold.batch_id),
            hold.token,
            segment.number,
            write_segment(segment),
            n_completed,
            n_failed,
            *unfed,
            usage.input_tokens,
            usage.cached_tokens,
            usage.output_tokens,
            usage.reasoning_tokens,
            *job_ids,
        ]
        answer, *objects = await self._say("collect", hold.batch_id, names, arguments)
        await self._annex.drop(objects)
        return bool(answer == b"ok")

    async def finalize(self, hold: Hold, why: Literal["over", "expired", "cancelled"]) -> bool:
        """No line is fed from here on. A batch that is being cancelled, or was finalized before, stays so.

        False: the hold was lost, it runs no more, or it is not over. Raises BusUnavailable.
        """
        return bool(await self._say("finalize", hold.batch_id, (), (hold.token, why)))

    async def finish(self, hold: Hold, retention_s: float, *, fault: LineFault | None = None) -> bool:
        """Ends a batch of which every line stands in a segment; or, with a `fault`, one whose other lines nobody will
        ever know: it has failed then. Its record stays for `retention_s`, and so do its files unless it says how long.

        False: the hold was lost, or lines are missing. Raises BusUnavailable.
        """
        batch = await self.record(hold.batch_id)
        if batch is None:
            return False
        pieces = [segment_pieces(batch.id, segment) for segment in await self.segments(batch.id)]
        output = _file(batch, output_file_id(batch.id), "output", [output for output, _ in pieces])
        errors = _file(batch, error_file_id(batch.id), "error", [error for _, error in pieces])
        arguments: list[str | bytes | int] = [
            self._keys.prefix_of_batch(batch.id),
            batch.id,
            hold.token,
            round(retention_s * 1000),
            len(pieces),
            round((batch.output_life_s or retention_s) * 1000),
            *((output.id, output.to_json()) if output.pieces else ("", "")),
            *((errors.id, errors.to_json()) if errors.pieces else ("", "")),
            *(WrittenFaults.of((fault, *batch.faults)) if fault else ()),
        ]
        return bool(await self._say("finish", batch.id, (), arguments))

    async def _feed_together(self, hold: Hold, lines: Sequence[FedLine]) -> Fed:
        """Lines that are sent to the server together."""
        written = await asyncio.gather(*map(self._write, lines))
        calls = [
            (line.job is not None, self._feeding(hold, line, texts)) for line, texts in zip(lines, written, strict=True)
        ]
        n_fed = 0
        for is_job, group in groupby(calls, key=lambda call: call[0]):
            which = script("enqueue" if is_job else "batches/refuse")
            for answer, detail in await run(self._link, which, [call for _, call in group], tries=TRIES):
                if answer in (b"new", b"fed"):
                    n_fed += 1
                    continue
                if answer == b"lost":
                    return Fed(n_fed, is_held=False)  # by another, who may have fed these: their texts stay
                await self._take_back(written[n_fed:])
                job = lines[n_fed].job
                if answer == b"full" and job is not None:
                    return Fed(n_fed, await self._enqueuing.relief_s(partition_of(job.id), job.model, detail))
                return Fed(n_fed)
        return Fed(n_fed)

    async def _write(self, line: FedLine) -> Written | None:
        return None if line.job is None else await self._enqueuing.write(line.job)

    async def _take_back(self, written: Sequence[Written | None]) -> None:
        for each in written:
            if each is not None:
                await self._enqueuing.take_back(each)

    def _feeding(self, hold: Hold, line: FedLine, written: Written | None) -> Command:
        if line.job is not None and written is not None:
            place = PlanLine(hold.batch_id, hold.token, line.start, line.stop)
            return self._enqueuing.call(line.job, written, line=place)
        if line.refusal is None:
            raise ValueError("a line is a job, or is refused")
        arguments = (
            self._keys.prefix_of_batch(hold.batch_id),
            hold.batch_id,
            line.refusal.job_id,
            hold.token,
            line.start,
            line.stop,
            line.refusal.record,
        )
        return script("batches/refuse").call((self._keys.batch(hold.batch_id),), arguments)


def _chunks(things: Sequence[Thing]) -> Iterator[Sequence[Thing]]:
    return (things[first : first + FED_AT_ONCE] for first in range(0, len(things), FED_AT_ONCE))


def _chunks_of_plan(lines: Sequence[FedLine]) -> Iterator[Sequence[FedLine]]:
    """None is longer than it may be, but for a line that is so alone."""
    first = 0
    for place in range(1, len(lines) + 1):
        if (
            place == len(lines)
            or place - first == FED_AT_ONCE
            or lines[place].stop - lines[first].start > BYTES_AT_ONCE
        ):
            yield lines[first:place]
            first = place


def _file(batch: Batch, file_id: str, what: str, pieces: Sequence[Piece]) -> FileRecord:
    return FileRecord(
        id=file_id,
        tenant=batch.tenant,
        filename=f"{batch.id}_{what}.jsonl",
        purpose=Purpose.BATCH_OUTPUT,
        created_at=0.0,
        pieces=tuple(piece for piece in pieces if piece.n_bytes),
    )
