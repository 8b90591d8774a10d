"""Objects behind a URL of fsspec: S3 first of all, and whatever else has a package for it.

An object store shows an object when its upload is complete, so that is how it is written there; elsewhere it is written
under another name and moved. Nothing is remembered of what is there, since other processes change it.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import fsspec
import structlog

from shared.errors import StoreUnavailable, UnknownFile
from shared.settings import ConfigError
from shared.store.backend import LocalCopy, Sink, Source

S3 = frozenset({"s3", "s3a"})
OBJECT_STORES = S3 | frozenset({"gs", "gcs", "az", "abfs", "abfss"})
EPHEMERAL = frozenset({"memory", "data"})
"""Each process would have one of its own."""

PARTIAL = "partial"
BLOCK = 10 << 20
"""Bytes of a part of an upload. S3 takes 10,000 of them, and none but the last under 5 MB."""

CONNECT_S, READ_S = 3, 20
"""For an answer of S3. s3fs asks five times."""

OPEN_FILES = Path("/proc/self/fd")

log = structlog.get_logger(__name__)


class Remote:
    def __init__(self, url: str) -> None:
        """`SCHEME://[KEY:SECRET@]BUCKET[/PREFIX][?OPTION=VALUE&...]`. The key is S3's; the options are fsspec's, and
        `region`. Raises ConfigError, without the URL: it may hold a password."""
        try:
            parts = urlsplit(url)
            scheme, options = parts.scheme, dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
            if scheme in S3:
                options |= _key_of(parts.username, parts.password)
                place = parts.netloc.rpartition("@")[2] + parts.path
            else:
                place = parts.netloc + parts.path
        except ValueError:
            raise ConfigError("--store-url: cannot be read as a URL, SCHEME://BUCKET/PREFIX") from None
        if scheme in EPHEMERAL:
            raise ConfigError(f"--store-url: what is behind {scheme}:// is not the same for all processes")
        if not place.strip("/"):
            raise ConfigError(f"--store-url: names no bucket or folder behind {scheme}://")
        self._fs = _file_system(scheme, options)
        self._root = self._fs._strip_protocol(f"{scheme}://{place}").rstrip("/")
        self._is_object_store, self._is_s3 = scheme in OBJECT_STORES, scheme in S3

    def create(self, name: str) -> Sink:
        target = self._path(name)
        partial = target if self._is_object_store else self._path(f"{PARTIAL}/{secrets.token_hex(12)}")
        with _faults(writes=True):
            return _Upload(self._fs, partial, target)

    def open(self, name: str) -> Source:
        return _Object(self._fs, self._path(name), self.size(name))

    def size(self, name: str) -> int:
        with _faults():
            return int(self._fs.info(self._path(name))["size"])

    def delete(self, names: Sequence[str]) -> None:
        paths = [self._path(name) for name in names]
        with _faults():
            try:
                self._fs.rm(paths)  # many at once, where it can
            except FileNotFoundError:
                for path in paths:
                    with suppress(FileNotFoundError):
                        self._fs.rm_file(path)

    def names(self, prefix: str) -> Iterator[tuple[str, float]]:
        for path, changed in self._objects_below(prefix):
            if not path.startswith(f"{PARTIAL}/"):
                yield path, changed

    def drop_unfinished(self, before: float) -> int:
        with _faults():
            if self._is_s3:
                return self._abort_uploads(before)
        left = [name for name, changed in self._objects_below(f"{PARTIAL}/") if changed < before]
        self.delete(left)
        return len(left)

    def _objects_below(self, prefix: str) -> Iterator[tuple[str, float]]:
        folder = self._path(prefix).rstrip("/")
        with _faults():
            try:
                found: Mapping[str, Mapping[str, Any]] = self._fs.find(folder, detail=True)
            except FileNotFoundError:
                return
            for path, facts in found.items():
                yield path.removeprefix(f"{self._root}/"), _changed(facts) or self._fs.modified(path).timestamp()

    def _abort_uploads(self, before: float) -> int:
        """S3 keeps, and charges for, the parts of what was never completed, and shows them in no listing."""
        bucket, _, key = self._root.partition("/")
        left = [
            upload
            for upload in self._fs.list_multipart_uploads(bucket)
            if upload["Key"].startswith(f"{key}/" if key else "") and upload["Initiated"].timestamp() < before
        ]
        for upload in left:
            self._fs.abort_mpu(bucket, upload["Key"], upload["UploadId"])
        return len(left)

    def fetch(self, name: str) -> LocalCopy:
        source = self.open(name)
        copy = _Copy()
        try:
            copy.fill(source)
        except BaseException:
            copy.drop()
            raise
        return copy

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class _Upload:
    def __init__(self, fs: Any, path: str, target: str) -> None:
        self._fs, self._path, self._target = fs, path, target
        self._lock = threading.Lock()
        if path != target:
            fs.makedirs(fs._parent(path), exist_ok=True)
        self._file = fs.open(path, "wb", block_size=BLOCK)
        self._is_ended = False

    def write(self, piece: bytes) -> None:
        with self._lock, _faults(writes=True):
            self._file.write(piece)

    def commit(self) -> None:
        with self._lock, _faults(writes=True):
            self._file.close()
            if self._path != self._target:
                self._fs.makedirs(self._fs._parent(self._target), exist_ok=True)
                self._fs.mv(self._path, self._target)
            self._is_ended = True

    def abort(self) -> None:
        with self._lock, suppress(Exception):  # whatever it was: what is left of it goes with the next sweep
            if self._is_ended:
                return
            self._is_ended = True
            if self._path == self._target:
                self._file.closed = True  # first: closing it would complete it, and so would forgetting it
                self._file.discard()
            else:
                with suppress(Exception):
                    self._file.close()
                self._fs.rm_file(self._path)


class _Object:
    def __init__(self, fs: Any, path: str, size: int) -> None:
        self._fs, self._path = fs, path
        self.size = size

    def read(self, start: int, n_bytes: int) -> bytes:
        with _faults():
            piece: bytes = self._fs.cat_file(self._path, start=start, end=start + n_bytes)
        if len(piece) != n_bytes:
            raise StoreUnavailable("A file in the store is shorter than it was.")
        return piece

    def close(self) -> None:
        pass


class _Copy:
    """Of which nothing is left when the process dies: where the system shows open files as paths, it has no name."""

    def __init__(self) -> None:
        # For its owner alone, either of them.
        self._file = tempfile.TemporaryFile() if OPEN_FILES.is_dir() else tempfile.NamedTemporaryFile()  # noqa: SIM115
        self.path = OPEN_FILES / str(self._file.fileno()) if OPEN_FILES.is_dir() else Path(self._file.name)

    def fill(self, source: Source) -> None:
        """Raises StoreUnavailable, also when this machine has no room for it."""
        with _faults(writes=True):
            for start in range(0, source.size, BLOCK):
                self._file.write(source.read(start, min(BLOCK, source.size - start)))
            self._file.flush()

    def drop(self) -> None:
        with suppress(OSError):
            self._file.close()


def _key_of(key: str | None, secret: str | None) -> dict[str, str]:
    return {name: unquote(value) for name, value in (("key", key), ("secret", secret)) if value}


def _file_system(scheme: str, options: dict[str, str]) -> Any:
    """Raises ConfigError."""
    given: dict[str, Any] = {**options, "use_listings_cache": False, "skip_instance_cache": True}
    if scheme in S3:
        region = given.pop("region", None)
        given["client_kwargs"] = {"region_name": region} if region else {}
        # s3fs tries again by itself.
        given["config_kwargs"] = {
            "connect_timeout": CONNECT_S,
            "read_timeout": READ_S,
            "retries": {"total_max_attempts": 1},
        }
    try:
        return fsspec.filesystem(scheme, **given)
    except ImportError:
        package = "pip install 'slotstream[s3]'" if scheme in S3 else "see fsspec's list of packages"
        raise ConfigError(f"--store-url: {scheme}:// needs a package that is not installed ({package})") from None
    except ValueError:
        raise ConfigError(f"--store-url: there is no such kind of store as {scheme}://") from None
    except Exception as error:  # the border: each package says in its own way what it does not like
        raise ConfigError(f"--store-url: {scheme}:// cannot be used so ({type(error).__name__})") from None


def _changed(facts: Mapping[str, Any]) -> float | None:
    """Unix time, under the names that file systems have for it."""
    for name in ("LastModified", "mtime", "last_modified", "updated"):
        match facts.get(name):
            case datetime() as moment:
                return moment.timestamp()
            case int() | float() as seconds:
                return float(seconds)
    return None


@contextmanager
def _faults(*, writes: bool = False) -> Iterator[None]:
    """What a package for a store raises is as manifold as those are; where an object is written, "not found" is the
    bucket."""
    try:
        yield
    except (StoreUnavailable, UnknownFile):
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and not writes:
            raise UnknownFile("There is no such file.") from error
        log.warning("the store of files cannot be used", setting="--store-url", reason=str(error) or repr(error))
        match error:
            case FileNotFoundError():
                reason = "has no such bucket or folder"
            case PermissionError():
                reason = "denies access"
            case _:
                reason = "cannot be reached now"
        raise StoreUnavailable(f"The store of files {reason}.", retry_after_s=10) from error
