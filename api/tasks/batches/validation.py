"""From a batch that was just made to its plan in the store, or to why it cannot be run.

A large file is looked through by a process of its own: beside other work of this one, its lines would hold up everybody
for as long as each takes to be read. Whatever is done here can be done again, and comes to the same.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

import structlog

from api.lines.record import line_of
from api.tasks.batches.patience import Patience
from api.tasks.batches.planning import Planned, Rules, plan_again, plan_file
from shared.batches import Batch, BatchStatus, LineFault, Segment, plan_object, segment_pieces
from shared.bus import Bus
from shared.bus.holds import Hold
from shared.errors import StoreUnavailable, UnknownFile
from shared.files import Piece
from shared.settings import TasksSettings
from shared.store import PIECE, Store

LARGE = 8_000_000
"""Bytes of a file from which on a process looks through it: below, it takes a thread less time than a process takes to
start."""

PROCESSES = 2
"""At a time: who has many large files validated does not hold up everybody else's small ones."""

MAX_KILLED = 5
"""Processes that look through the same file and are killed, before the file is at fault: it may be that they run out of
memory, and this machine with them."""

ELSEWHERE = "A file of a batch is not in the store: is --store-url the same for all processes?"

OUT_OF_TIME = LineFault(
    code="validation_failed", message="the file could not be looked through in time; the log of tasks says why"
)

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Busy(Exception):
    """As many large files as may be are being looked through."""


class _Unfit(Exception):
    """The file as a whole cannot be a batch's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.fault = LineFault(code=code, message=message)


class Validation:
    def __init__(self, bus: Bus, store: Store, settings: TasksSettings, patience: Patience) -> None:
        self._bus, self._store, self._settings, self._patience = bus, store, settings, patience
        self._n_processes = 0
        self._n_killed: Counter[str] = Counter()
        """By batch, as long as it is validated here."""

    async def run(self, hold: Hold, batch: Batch) -> None:
        """The batch is in progress then, or has failed; unless it was cancelled, or the hold was lost. Raises Busy,
        StoreUnavailable and BusUnavailable: it is as it was."""
        with tempfile.TemporaryFile() as plan, tempfile.TemporaryFile() as errors:
            try:
                planned = await self._planned(hold, batch, plan, errors)
            except _Unfit as unfit:
                planned = Planned(faults=(unfit.fault,))
            except OSError:  # no room for temporary files, or no memory: that may pass
                if hold.now < batch.expires_at:
                    raise
                log.exception("a file could not be looked through", batch=batch.id)
                planned = Planned(faults=(OUT_OF_TIME,))
            if planned.n_planned:
                segment = await self._keep(hold, planned, plan, errors)
                await self._bus.batches.planned(
                    hold,
                    n_total=planned.n_total,
                    n_planned=planned.n_planned,
                    faults=planned.faults,
                    segment=segment,
                    model=planned.model,
                )
            else:
                await self._bus.batches.reject(hold, planned.faults, self._settings.file_retention_s)
        self._n_killed.pop(batch.id, None)
        log.info("validated", batch=batch.id, lines=planned.n_total, planned=planned.n_planned)

    async def _planned(self, hold: Hold, batch: Batch, plan: BinaryIO, errors: BinaryIO) -> Planned:
        if batch.retry_of is not None:
            return await self._planned_again(hold, batch, batch.retry_of, plan)
        file = await self._bus.files.record(batch.input_file_id, batch.tenant)
        if file is None:
            raise _Unfit("file_not_found", f"the file {batch.input_file_id} is not there any more")
        if file.n_bytes > self._settings.max_batch_mb * 1e6:
            raise _Unfit("file_too_large", f"the file is larger than {self._settings.max_batch_mb:g} MB")
        rules = Rules(
            batch_id=batch.id,
            endpoint=batch.endpoint,
            max_line=self._settings.max_body,
            max_lines=self._settings.max_batch_lines,
        )
        try:
            async with self._opened(file.pieces) as source:
                if file.n_bytes < LARGE:
                    return await _in_thread(plan_file, source, plan, errors, rules)
                return await self._planned_beside(source, plan, errors, rules)
        except UnknownFile:
            # It is forgotten before its bytes go: while it is known they are somewhere, if not here.
            is_known = await self._bus.files.record(batch.input_file_id, batch.tenant) is not None
            if is_known and not self._patience.is_over(batch, hold.now):
                raise StoreUnavailable(ELSEWHERE, retry_after_s=10) from None
            raise _Unfit("file_not_found", f"the file {batch.input_file_id} is not there any more") from None

    async def _planned_beside(self, source: BinaryIO, plan: BinaryIO, errors: BinaryIO, rules: Rules) -> Planned:
        if self._n_processes == PROCESSES:
            raise Busy
        self._n_processes += 1
        try:
            files = [file.fileno() for file in (source, plan, errors)]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "api.tasks.batches.planning", *map(str, files), rules.to_json()),
                stdin=DEVNULL,
                stdout=PIPE,
                pass_fds=files,
                start_new_session=True,  # Ctrl-C is for us, and we end it
            )
            try:
                said, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            self._look_at_end(rules.batch_id, process.returncode or 0)
            return Planned.from_json(said)
        finally:
            self._n_processes -= 1

    def _look_at_end(self, batch_id: str, status: int) -> None:
        if status < 0:
            self._n_killed[batch_id] += 1
            if self._n_killed[batch_id] >= MAX_KILLED:
                raise _Unfit("validation_failed", f"{MAX_KILLED} processes that looked through the file were killed")
        if status:
            raise ChildProcessError(f"the process that plans a batch ended with {status}")

    async def _planned_again(self, hold: Hold, batch: Batch, earlier_id: str, plan: BinaryIO) -> Planned:
        """Of the lines of another batch that could be run those that failed."""
        earlier = await self._bus.batches.record(earlier_id, batch.tenant)
        if earlier is None:
            raise _Unfit("batch_not_found", f"the batch {earlier_id} is not there any more")
        try:
            failed = await self._failed_lines(earlier)
            async with self._opened([Piece(name=plan_object(earlier_id), n_bytes=0)]) as source:
                return await _in_thread(plan_again, source, plan, failed, earlier.model)
        except UnknownFile:
            # Of one of which lines failed all is kept as long as its record, unless that says that it was lost.
            is_kept = earlier.n_failed > 0 and earlier.status is not BatchStatus.FAILED
            if is_kept and not self._patience.is_over(batch, hold.now):
                raise StoreUnavailable(ELSEWHERE, retry_after_s=10) from None
            raise _Unfit(
                "plan_not_found", f"what is left of the batch {earlier_id} is not enough to retry it"
            ) from None

    async def _failed_lines(self, earlier: Batch) -> set[int]:
        lines: set[int] = set()
        for segment in await self._bus.batches.segments(earlier.id):
            _, errors = segment_pieces(earlier.id, segment)
            if errors.n_bytes:
                async with aclosing(self._records(errors.name)) as records:
                    async for record in records:
                        lines.add(line_of(record))
        return lines

    async def _records(self, name: str) -> AsyncGenerator[bytes, None]:
        begun = b""
        async with aclosing(self._store.read(name)) as pieces:
            async for piece in pieces:
                *records, begun = (begun + piece).split(b"\n")
                for record in records:
                    yield record

    @asynccontextmanager
    async def _opened(self, pieces: Sequence[Piece]) -> AsyncGenerator[BinaryIO, None]:
        """The bytes of all of them, one behind the other. Raises UnknownFile."""
        async with AsyncExitStack() as stack:
            paths = [await stack.enter_async_context(self._store.at_hand(piece.name)) for piece in pieces]
            if len(paths) == 1:
                yield stack.enter_context(_open(paths[0]))
                return
            with tempfile.TemporaryFile() as whole:
                for path in paths:
                    with _open(path) as piece:
                        await _in_thread(shutil.copyfileobj, piece, whole)
                whole.seek(0)
                yield whole

    async def _keep(self, hold: Hold, planned: Planned, plan: BinaryIO, errors: BinaryIO) -> Segment | None:
        """Puts the plan into the store, and segment 0 with the records of bad lines, if there are any."""
        await self._put(plan_object(hold.batch_id), plan)
        if not planned.error_bytes:
            return None
        n_bad = planned.n_total - planned.n_planned
        segment = Segment(number=0, mark=hold.mark, n_error=n_bad, error_bytes=planned.error_bytes)
        await self._put(segment_pieces(hold.batch_id, segment)[1].name, errors)
        return segment

    async def _put(self, name: str, file: IO[bytes]) -> None:
        await asyncio.to_thread(file.flush)
        async with self._store.writing(name) as writer:
            place = 0
            while piece := await asyncio.to_thread(os.pread, file.fileno(), PIECE, place):
                await writer.write(piece)
                place += len(piece)


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise UnknownFile("There is no such file.") from None


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Whoever cancels it waits for its end: it uses files that are closed then."""
    working = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait((working,))
        raise
