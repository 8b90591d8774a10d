"""Durable progress of one run: records in input order, whatever order they come in. Knows no HTTP.

Records that are next go to the end of `OUT.part`; those that came too early wait in a spool file and are moved
when their turn comes. Both files are only ever appended to, so that a crash can cut their last line and nothing
else; such a rest is thrown away at the next start.

Invariant: a record is in `.part` only after all records before it; what was put is found again after a crash of
this process, and after a crash of the machine but for about the last second, which the next run asks for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from api.lines.record import Failure, Outcome, failure_of, outcome_of

SPOOL_KEEP_BYTES = 4 * 1024 * 1024
"""A spool that is empty of waiting records is emptied on disk beyond this size."""


N_FAILURES = 3


class ForeignPart(Exception):
    """The `.part` file has more records than the input has lines: it is of something else."""


@dataclass(slots=True)
class Tally:
    """Sums over the records that were put, in this run and before."""

    done: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    failures: dict[int, Failure] = field(default_factory=dict)
    """By line, in their order: the first `N_FAILURES` of those that failed."""

    def add(self, index: int, record: bytes, outcome: Outcome | None = None) -> None:
        """Count the record of a line, and take it apart unless that was done. ValueError when it is none of ours."""
        outcome = outcome or outcome_of(record)
        self.done += 1
        self.prompt_tokens += outcome.prompt_tokens
        self.generated_tokens += outcome.generated_tokens
        if outcome.is_failed:
            self.failed += 1
            self._remember(index, record)

    def _remember(self, index: int, record: bytes) -> None:
        if len(self.failures) < N_FAILURES or index < max(self.failures):
            known = self.failures | {index: failure_of(record)}
            self.failures = dict(sorted(known.items())[:N_FAILURES])


class Ledger:
    """The records of a run. One process at a time may have it open; the run's lock sees to that."""

    def __init__(self, part: Path, spool: Path, *, n_lines: int) -> None:
        self.tally = Tally()
        self.n_written = 0
        """Records in `.part`: those of the lines 0 to n_written - 1."""
        self._waiting: dict[int, tuple[int, int]] = {}  # line -> offset and length in the spool
        self._part_path, self._spool_path = part, spool
        self._n_lines = n_lines

    def __enter__(self) -> Self:
        _recover(self._part_path, self._take_written)
        if self.n_written > self._n_lines:
            raise ForeignPart
        self._spool_bytes = _recover(self._spool_path, self._take_waiting)
        with contextlib.ExitStack() as files:
            self._part = files.enter_context(self._part_path.open("ab"))
            self._spool = files.enter_context(self._spool_path.open("a+b"))
            self._move_those_next()
            self._part.flush()
            self._files = files.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    @property
    def is_complete(self) -> bool:
        return self.n_written == self._n_lines

    def has(self, index: int) -> bool:
        return index < self.n_written or index in self._waiting

    def put(self, index: int, record: bytes, outcome: Outcome | None = None) -> None:
        """Keep the record of a line. A second record of the same line is dropped."""
        if self.has(index):
            return
        self.tally.add(index, record, outcome)
        if index != self.n_written:
            self._keep(index, record)
            return
        self._part.write(record + b"\n")
        self.n_written += 1
        self._move_those_next()
        self._part.flush()

    async def sync(self) -> None:
        """Have the disk hold what was put so far. Other tasks run meanwhile."""
        await asyncio.to_thread(os.fsync, self._part.fileno())
        await asyncio.to_thread(os.fsync, self._spool.fileno())

    def publish(self, output: Path) -> None:
        """Rename the complete `.part` to the output file."""
        assert self.is_complete, "a part is not a result"
        self._part.flush()
        os.fsync(self._part.fileno())
        self._part_path.replace(output)
        sync_folder(output.parent)

    def _keep(self, index: int, record: bytes) -> None:
        head = _spool_head(index)
        self._spool.write(head + record + b"}\n")
        self._spool.flush()
        self._waiting[index] = (self._spool_bytes + len(head), len(record))
        self._spool_bytes += len(head) + len(record) + 2

    def _move_those_next(self) -> None:
        while self.n_written in self._waiting:
            offset, length = self._waiting.pop(self.n_written)
            self._part.write(os.pread(self._spool.fileno(), length, offset) + b"\n")
            self.n_written += 1
        if not self._waiting and self._spool_bytes > SPOOL_KEEP_BYTES:
            self._part.flush()
            os.fsync(self._part.fileno())  # before its only other copy goes
            self._spool.truncate(0)
            self._spool_bytes = 0

    def _take_written(self, line: bytes, offset: int) -> None:
        self.tally.add(self.n_written, line)
        self.n_written += 1

    def _take_waiting(self, line: bytes, offset: int) -> None:
        index = json.loads(line)["line"]
        head = _spool_head(index)
        record = line[len(head) : -1]
        if self.has(index):
            outcome_of(record)  # garbage ends the spool here, too
        else:
            self.tally.add(index, record)
            self._waiting[index] = (offset + len(head), len(record))


def _spool_head(index: int) -> bytes:
    return b'{"line":%d,"record":' % index


def _recover(path: Path, take: Callable[[bytes, int], None]) -> int:
    """Hand every whole line and its offset to `take`, cut off what a crash left, and return the bytes kept."""
    path.touch()
    kept = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                take(line[:-1], kept)
            except (ValueError, KeyError, TypeError):
                break
            kept += len(line)
    if kept < path.stat().st_size:
        os.truncate(path, kept)
    return kept


def sync_folder(folder: Path) -> None:
    """Have the disk hold a rename in the folder."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
