"""Objects as files of a folder. They appear by a rename, when all of their bytes are on the disk.

What is being written lies in a folder of its own beside them, which is what a crash leaves something in. Only the
owner of the process can look into any of it.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from shared import home
from shared.errors import StoreUnavailable, UnknownFile
from shared.settings import ConfigError
from shared.store.backend import LocalCopy, Sink, Source

PARTIAL = "partial"
"""Where objects are until they are whole."""

FOLDER_MODE, FILE_MODE = 0o700, 0o600

log = structlog.get_logger(__name__)


def default_folder() -> Path:
    """`files` in slotstream's folder of the user's state. Raises ConfigError when there is no home."""
    if state := home.state_folder():
        return state / "files"
    raise ConfigError("there is no home folder to keep files in; name a folder with --store-url")


class Folder:
    def __init__(self, folder: Path) -> None:
        """Makes the folder when it is missing. Raises ConfigError when nothing can be written there."""
        self._root = folder.expanduser().absolute()
        try:
            _make_folder(self._root / PARTIAL)
        except OSError as error:
            raise ConfigError(f"--store-url: cannot make the folder {self._root}: {_words(error)}") from None
        if not os.access(self._root / PARTIAL, os.W_OK | os.X_OK):
            raise ConfigError(f"--store-url: the folder {self._root} cannot be written")

    def create(self, name: str) -> Sink:
        partial, target = self._root / PARTIAL / secrets.token_hex(12), self._root / name
        with _faults(writes=True):
            try:
                return _FileSink(partial, target)
            except FileNotFoundError:  # somebody has emptied the store, or mounted another disk there
                with suppress(FileExistsError):
                    partial.parent.mkdir(FOLDER_MODE)  # and not the store's folder: its disk may be away
                return _FileSink(partial, target)

    def open(self, name: str) -> Source:
        with _faults():
            return _FileSource(self._root / name)

    def size(self, name: str) -> int:
        with _faults():
            return (self._root / name).stat().st_size

    def delete(self, names: Sequence[str]) -> None:
        with _faults():
            for name in names:
                (self._root / name).unlink(missing_ok=True)
            for folder in {(self._root / name).parent for name in names}:
                if folder.parent != self._root:
                    with suppress(OSError):  # somebody's objects are still in there
                        folder.rmdir()

    def names(self, prefix: str) -> Iterator[tuple[str, float]]:
        for path, entry in self._files_below(self._root / prefix):
            if not path.startswith(f"{PARTIAL}/"):
                with suppress(FileNotFoundError):  # it went meanwhile
                    yield path, entry.stat(follow_symlinks=False).st_mtime

    def drop_unfinished(self, before: float) -> int:
        n_dropped = 0
        for path, entry in self._files_below(self._root / PARTIAL):
            with suppress(UnknownFile), _faults():
                if entry.stat(follow_symlinks=False).st_mtime < before:
                    (self._root / path).unlink()
                    n_dropped += 1
        return n_dropped

    def _files_below(self, folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
        pending = [folder]
        while pending:
            with suppress(UnknownFile), _faults(), os.scandir(pending.pop()) as entries:  # unknown: it went meanwhile
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
                    else:
                        yield Path(entry.path).relative_to(self._root).as_posix(), entry

    def fetch(self, name: str) -> LocalCopy:
        self.size(name)
        return _InPlace(self._root / name)


class _FileSink:
    def __init__(self, partial: Path, target: Path) -> None:
        self._partial, self._target = partial, target
        self._lock = threading.Lock()
        self._file = open(partial, "xb", buffering=0, opener=_for_the_owner)  # noqa: SIM115  # closed at its end

    def write(self, piece: bytes) -> None:
        with self._lock, _faults(writes=True):
            rest = memoryview(piece)
            while rest:
                rest = rest[self._file.write(rest) :]

    def commit(self) -> None:
        with self._lock, _faults(writes=True):
            os.fsync(self._file.fileno())
            self._file.close()
            self._move()

    def abort(self) -> None:
        with self._lock, suppress(OSError):
            self._file.close()
            self._partial.unlink(missing_ok=True)

    def _move(self) -> None:
        """Raises StoreUnavailable, and OSError."""
        while True:
            _make_folder(self._target.parent)
            try:
                self._partial.rename(self._target)
            except FileNotFoundError:
                if not self._partial.exists():
                    raise StoreUnavailable("The store of files lost what was being written to it.") from None
                continue  # its folder was empty until now, and went as such
            return _sync_folder(self._target.parent)


class _FileSource:
    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, start: int, n_bytes: int) -> bytes:
        with _faults():
            piece = os.pread(self._file.fileno(), n_bytes, start)
        if not piece:
            raise StoreUnavailable("A file in the store is shorter than it was.")
        return piece

    def close(self) -> None:
        self._file.close()


class _InPlace:
    def __init__(self, path: Path) -> None:
        self.path = path

    def drop(self) -> None:
        pass


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def _make_folder(folder: Path) -> None:
    """With what is above it, for the owner alone: `Path.mkdir` would open what is above to everybody."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(FOLDER_MODE)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """A name that stands in a folder outlives a loss of power only from here on."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _faults(*, writes: bool = False) -> Iterator[None]:
    """Where an object is written, "not found" is the store's folder."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not writes:
            raise UnknownFile("There is no such file.") from error
        raise _unavailable(error) from error


def _unavailable(error: OSError) -> StoreUnavailable:
    log.warning("the store of files cannot be used", setting="--store-url", reason=str(error))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable("The store of files is full.", retry_after_s=60)
    return StoreUnavailable(f"The store of files cannot be used now: {_words(error)}.", retry_after_s=10)


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
