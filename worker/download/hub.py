"""What a model hub says of a repository: the commit of a revision, and its files.

The paths are those that llama.cpp asks (`/api/models/…/refs`, `/tree/…`, `/…/resolve/…`), so that any hub or mirror
that serves it serves us. Knows no folder of this machine.
"""

from __future__ import annotations

import re

import structlog
from pydantic import TypeAdapter, ValidationError
from yarl import URL

from shared.wire import Wire
from worker.download.choice import RemoteFile, is_safe
from worker.download.client import Client
from worker.download.failures import DownloadFailed
from worker.download.patience import Patience

MAX_PAGES = 100

log = structlog.get_logger(__name__)


class _Ref(Wire):
    name: str
    targetCommit: str


class _Refs(Wire):
    branches: list[_Ref] = []
    tags: list[_Ref] = []


class _Pointer(Wire):
    oid: str = ""
    size: int | None = None


class _Entry(_Pointer):
    type: str = "file"
    path: str
    lfs: _Pointer | None = None


_Entries = TypeAdapter(list[_Entry])


class Hub:
    def __init__(self, client: Client, endpoint: URL, patience: Patience) -> None:
        self._client, self._endpoint, self._patience = client, endpoint, patience

    async def commit(self, repo: str, revision: str) -> str:
        """What a branch, a tag or a commit's own hash stands for now. DownloadFailed."""
        if is_commit(revision):
            return revision
        body, _ = await self._read(hub_url(self._endpoint, f"api/models/{repo}/refs"), repo)
        try:
            refs = _Refs.from_json(body)
        except ValidationError:
            raise self._no_hub() from None
        for ref in (*refs.branches, *refs.tags):
            if ref.name == revision and is_commit(ref.targetCommit):
                return ref.targetCommit
        raise DownloadFailed(f"{repo} has no revision {revision}")

    async def files(self, repo: str, commit: str) -> list[RemoteFile]:
        """All files of a commit whose names can be trusted. DownloadFailed."""
        page: URL | None = hub_url(self._endpoint, f"api/models/{repo}/tree/{commit}").update_query(recursive="true")
        files: list[RemoteFile] = []
        for _ in range(MAX_PAGES):
            if page is None:
                return files
            body, page = await self._read(page, repo)
            try:
                entries = _Entries.validate_json(body)
            except ValidationError:
                raise self._no_hub() from None
            files += [file for entry in entries if (file := _file(entry))]
        raise DownloadFailed(f"{repo} has more files than are read")

    async def _read(self, url: URL, repo: str) -> tuple[bytes, URL | None]:
        what = f"the repository {repo} of {self._endpoint.host}"
        return await self._patience.see_through(lambda: self._client.read_json(url, what))

    def _no_hub(self) -> DownloadFailed:
        return DownloadFailed(f"{self._endpoint} does not answer as a model hub does")


def hub_url(endpoint: URL, path: str) -> URL:
    """An endpoint may have a path of its own, as mirrors do."""
    return endpoint.joinpath(*path.split("/"))


def is_commit(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{40}", text) is not None


def _file(entry: _Entry) -> RemoteFile | None:
    if entry.type != "file":
        return None
    pointer = entry.lfs or entry
    oid = pointer.oid.lower().removeprefix("sha256:")
    if not is_safe(entry.path) or re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", oid) is None:
        log.warning("a file of the repository is not looked at", path=entry.path[:200])
        return None
    return RemoteFile(entry.path, pointer.size if pointer.size is not None else entry.size, oid)
