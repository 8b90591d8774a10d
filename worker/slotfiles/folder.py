"""One folder of files that clients name: whole files or none, and no way out of the folder.

The folder is held open, and everything is done relative to it and never through a link. A file is written under a name
of ours, which no client can say, and takes its own when it is on the disk. Knows nothing of what is in them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from shared.errors import InvalidRequest, Unavailable
from shared.filenames import is_safe_filename
from shared.settings import ConfigError

UNFINISHED = ".slotstream-"
"""How the names of files begin that are still being written."""
ABANDONED_S = 3600.0
"""After which nobody can be writing one any more."""
SPARE_BYTES = 64 << 20
"""Of the disk that are left for others."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SlotFolder:
    """For any thread."""

    def __init__(self, path: Path) -> None:
        """ConfigError when it is no folder, or none that we may write to."""
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"--slot-save-path: {path}: {(error.strerror or str(error)).lower()}") from None
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=self._fd):
            self.close()
            raise ConfigError(f"--slot-save-path: {path}: may not be written to")
        self._clear_abandoned()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, name: str, n_bytes: int, write: Callable[[BinaryIO], None]) -> None:
        """Let `name` be a file with what `write` puts there, so many bytes. InvalidRequest for a name that will not do,
        Unavailable when the disk does not take it; then all is as it was."""
        _check(name)
        self._check_target(name)
        self._check_space(n_bytes)
        unfinished = f"{UNFINISHED}{secrets.token_hex(12)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(unfinished, flags, 0o600, dir_fd=self._fd), "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(unfinished, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            os.fsync(self._fd)
        except OSError as error:
            why = "the disk is full" if error.errno in _FULL else (error.strerror or str(error)).lower()
            raise Unavailable(f"Unable to save slot: {why}", retry_after_s=60) from None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(unfinished, dir_fd=self._fd)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[tuple[BinaryIO, int]]:
        """A file, and its length. InvalidRequest when there is none of that name that is one."""
        _check(name)
        try:
            # Not to wait for a writer, should it be a pipe.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=self._fd)
        except OSError as error:
            is_missing = error.errno == errno.ENOENT
            why = "there is no such file" if is_missing else "its file cannot be opened"
            raise InvalidRequest(f"Unable to restore slot: {why}", param="filename") from None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise InvalidRequest("Unable to restore slot: its file is none", param="filename")
        with os.fdopen(fd, "rb", buffering=0) as file:
            yield file, found.st_size

    def _check_target(self, name: str) -> None:
        """What is there already may be replaced, if it is a file."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode):
                raise InvalidRequest("Unable to save slot: something that is no file has that name", param="filename")

    def _check_space(self, n_bytes: int) -> None:
        disk = os.fstatvfs(self._fd)
        if disk.f_bavail * disk.f_frsize < n_bytes + SPARE_BYTES:
            raise Unavailable(f"Unable to save slot: its {n_bytes} bytes have no room on the disk", retry_after_s=60)

    def _clear_abandoned(self) -> None:
        """What workers were writing when they were killed. Others may share the folder, and write now."""
        with os.scandir(self._fd) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(UNFINISHED)]
        for name in names:
            with contextlib.suppress(OSError):
                found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
                if time.time() - found.st_mtime > ABANDONED_S:
                    os.unlink(name, dir_fd=self._fd)


def _check(name: str) -> None:
    if not is_safe_filename(name):
        raise InvalidRequest("Invalid filename", param="filename")
