"""The part of a file that has come so far, on disk: what a later attempt, or a later process, goes on from.

Written without a buffer of ours, so that a process that ends at once loses nothing. Knows no network. Its methods
block; one thread at a time may call them.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from worker.download.failures import DownloadFailed

MAGIC = b"GGUF"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PIECE = 1 << 20
STRETCH = 64 * PIECE
"""Read or brought to the disk at once: about a second's work, so that a process that is told to leave can."""


class NotGguf(Exception):
    """What has come is of no model."""


class Part:
    """Use as a context manager. Failures of the disk are DownloadFailed; what has come stays."""

    def __init__(self, path: Path) -> None:
        """Opens; what is there is still to be taken up. DownloadFailed."""
        self.path = path
        self._etag_path = path.with_name(f"{path.name}.etag")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+", buffering=0)
            self._file.seek(0)
            self.etag = self._etag_path.read_text() if self._etag_path.exists() else ""
        except OSError as error:
            raise self._failure(error) from error
        self._digest = hashlib.sha256()
        self._n_unsynced = 0
        self.head, self.size = b"", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not `size`: what is there may not have been taken up when a process is told to leave.
        is_empty = os.fstat(self._file.fileno()).st_size == 0
        self._file.close()
        if is_empty:
            self.path.unlink(missing_ok=True)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def take_up(self) -> bool:
        """Read a stretch of what an earlier time left, for the sum of the whole. Whether there may be more."""
        try:
            return read_stretch(self._file, self._note)
        except OSError as error:
            raise self._failure(error) from error

    def start_over(self, etag: str = "") -> None:
        """Forget what has come. `etag` says what comes now: a later attempt goes on only with the same."""
        try:
            self._file.truncate(0)
            if etag:
                self._etag_path.write_text(etag)
            else:
                self._etag_path.unlink(missing_ok=True)
        except OSError as error:
            raise self._failure(error) from error
        self._digest, self.head, self.size, self.etag = hashlib.sha256(), b"", 0, etag

    def push(self, piece: bytes) -> None:
        """Append. NotGguf as soon as the beginning shows it; then nothing is kept."""
        if not MAGIC.startswith((self.head + piece)[: len(MAGIC)]):
            self.start_over()
            raise NotGguf
        view = memoryview(piece)
        try:
            while view:  # a disk that fills up takes a bit of it first
                written = self._file.write(view)
                self._note(view[:written])
                view = view[written:]
                self._n_unsynced += written
            if self._n_unsynced >= STRETCH:
                os.fdatasync(self._file.fileno())
                self._n_unsynced = 0
        except OSError as error:
            raise self._failure(error) from error

    def check_room(self, total: int | None) -> None:
        """DownloadFailed when the disk has no room for what is missing, before an hour is spent on finding out."""
        try:
            status = os.statvfs(self.path.parent)
        except OSError as error:
            raise self._failure(error) from error
        free = status.f_bavail * status.f_frsize
        if total is not None and total - self.size > free:
            raise self._no_room(f"{total / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free")

    def finish(self, target: Path) -> None:
        """Becomes `target`, whole and on disk, in one step."""
        if self.size < len(MAGIC):
            self.start_over()
            raise NotGguf
        try:
            os.fsync(self._file.fileno())
            self.path.replace(target)
            if self.etag:
                self._etag_path.replace(etag_path_of(target))
        except OSError as error:
            raise self._failure(error) from error

    def _note(self, piece: bytes | memoryview) -> None:
        self._digest.update(piece)
        self.size += len(piece)
        if len(self.head) < len(MAGIC):
            self.head += bytes(piece[: len(MAGIC) - len(self.head)])

    def _failure(self, error: OSError) -> DownloadFailed:
        if error.errno in NO_ROOM:
            return self._no_room("no more can be written")
        return DownloadFailed(f"{error.filename or self.path}: {error.strerror}")

    def _no_room(self, why: str) -> DownloadFailed:
        return DownloadFailed(
            f"the disk of {self.path.parent} has no room: {why}; the {self.size / 1e6:.0f} MB that have come are kept,"
            " and the next start goes on from there"
        )


def etag_path_of(target: Path) -> Path:
    """Where the ETag of a finished file is noted."""
    return target.with_name(f"{target.name}.etag")


def read_stretch(file: BinaryIO | FileIO, note: Callable[[bytes], None]) -> bool:
    """Pass on a stretch of what is left in a file, piece by piece. Whether there may be more. OSError."""
    for _ in range(STRETCH // PIECE):
        if not (piece := file.read(PIECE)):
            return False
        note(piece)
    return True
