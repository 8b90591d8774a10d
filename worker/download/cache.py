"""Where fetched files lie on this machine.

Files of a hub lie as huggingface_hub and llama.cpp lay them out, so that what one of them has fetched the others find:
`models--USER--NAME/blobs/OID` is the content, `snapshots/COMMIT/PATH` a link to it, `refs/REVISION` a commit. Files of
a plain URL lie in `urls/HASH/NAME`, with their ETag beside them. Knows nothing of the network.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from yarl import URL

from worker.download.choice import RemoteFile
from worker.download.failures import DownloadFailed
from worker.download.hub import is_commit


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file is put together, and who may do it: whoever holds the lock."""

    target: Path
    lock: Path

    @property
    def part(self) -> Path:
        """What of it has come so far."""
        return self.target.with_name(f"{self.target.name}.part")


class Cache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, chosen: Path | None, environment: Mapping[str, str] = os.environ) -> Cache:
        """`chosen`, else the hub's own cache of this user. DownloadFailed when there is no home for one."""
        if chosen is not None:
            return cls(chosen.expanduser().absolute())
        for name, below in (
            ("LLAMA_CACHE", ""),
            ("HF_HUB_CACHE", ""),
            ("HF_HOME", "hub"),
            ("XDG_CACHE_HOME", "huggingface/hub"),
        ):
            if folder := environment.get(name):
                return cls(Path(folder).expanduser().absolute() / below)
        try:
            return cls(Path.home() / ".cache" / "huggingface" / "hub")
        except RuntimeError:
            raise DownloadFailed("there is no home folder to keep models in; name one with --cache-dir") from None

    def of_url(self, url: URL) -> Place:
        """Parts of one model get one folder."""
        parent = hashlib.sha256(str(url.parent.with_query(url.query)).encode()).hexdigest()[:16]
        relative = PurePosixPath("urls", parent, file_name_of(url))
        return Place(self.folder / relative, self._lock(relative))

    def of_blob(self, repo: str, file: RemoteFile) -> Place:
        # The lock is the one that huggingface_hub takes: it and we do not fetch the same file side by side either.
        lock = self._lock(PurePosixPath(_name_of(repo), file.oid))
        return Place(self.folder / _name_of(repo) / "blobs" / file.oid, lock)

    def path_of(self, repo: str, commit: str, file: RemoteFile) -> Path:
        """Where the file is found once it is whole."""
        return self.folder / _name_of(repo) / "snapshots" / commit / file.path

    def link(self, repo: str, commit: str, file: RemoteFile) -> Path:
        """Put the blob where it is found. OSError."""
        blob, path = self.of_blob(repo, file).target, self.path_of(repo, commit, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.symlink_to(os.path.relpath(blob, path.parent))
        except FileExistsError:
            return path
        except OSError:  # a file system without links
            blob.replace(path)
        return path

    def remember(self, repo: str, revision: str, commit: str) -> None:
        """What a revision stands for, for when the hub cannot be asked. OSError."""
        if revision != commit:
            path = self._ref(repo, revision)
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f"{path.name}.{os.getpid()}")
            fresh.write_text(commit)
            fresh.replace(path)

    def commit(self, repo: str, revision: str) -> str | None:
        """What `remember` was last told."""
        if is_commit(revision):
            return revision
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = self._ref(repo, revision).read_text().strip()
            return text if is_commit(text) else None
        return None

    def files(self, repo: str, commit: str) -> list[RemoteFile]:
        """Those of a commit that are here, by name."""
        top = self.folder / _name_of(repo) / "snapshots" / commit
        return [
            RemoteFile(path.relative_to(top).as_posix(), path.stat().st_size)
            for path in sorted(top.rglob("*"))
            if path.is_file()
        ]

    def _ref(self, repo: str, revision: str) -> Path:
        return self.folder / _name_of(repo) / "refs" / revision

    def _lock(self, relative: PurePosixPath) -> Path:
        return self.folder / ".locks" / relative.with_name(f"{relative.name}.lock")


def file_name_of(url: URL) -> str:
    """The URL's last part, made harmless. llama.cpp finds the parts of a model only under names in `.gguf`."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", PurePosixPath(url.path).name).lstrip(".")[:150] or "model"
    return name if name.lower().endswith(".gguf") else f"{name}.gguf"


def _name_of(repo: str) -> str:
    return "models--" + repo.replace("/", "--")
