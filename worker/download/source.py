"""Where a worker's model comes from, and how it gets here: read this first.

A model is a file of this machine, what a URL gives, or a repository of a hub. The name that clients use is known at
once, the path when the files are here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog
from pydantic import SecretStr
from yarl import URL

from shared.modelfile import Split
from worker.download.cache import Cache, file_name_of
from worker.download.choice import RemoteFile, is_safe, model_parts, projector_of
from worker.download.client import Client
from worker.download.failures import DownloadFailed
from worker.download.hub import Hub, hub_url
from worker.download.part import etag_path_of, read_stretch
from worker.download.patience import Patience
from worker.download.progress import Display
from worker.download.transfer import Transfer, Wanted

ENDPOINT = "https://huggingface.co"

log = structlog.get_logger(__name__)


class ModelFiles(NamedTuple):
    """Of a model that is here."""

    model: Path
    """The first part, of a model that has several."""
    projector: Path | None = None
    """That of its images, where its repository has one."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How files are fetched, whatever they are."""

    cache: Cache
    endpoint: URL = field(default_factory=lambda: URL(ENDPOINT))
    token: SecretStr | None = None
    """For the endpoint alone."""
    is_offline: bool = False
    has_bar: bool = False
    """A person looks on."""
    wants_projector: bool = True
    """That of a repository's model, if it has one."""
    patience: Patience = field(default_factory=Patience)


class Source(Protocol):
    @property
    def name(self) -> str: ...

    async def files(self, terms: Terms, on_progress: Callable[[float], None]) -> ModelFiles:
        """Fetch what is not here. `on_progress` hears 0 to 1. DownloadFailed."""


@dataclass(frozen=True, slots=True)
class FromFile:
    path: Path

    @property
    def name(self) -> str:
        return Split.of(self.path.name).stem

    async def files(self, terms: Terms, on_progress: Callable[[float], None]) -> ModelFiles:
        return ModelFiles(self.path)


@dataclass(frozen=True, slots=True)
class FromUrl:
    """Whatever lies there: a file that has changed since it was fetched is fetched again."""

    url: URL
    sha256: str = ""

    @classmethod
    def of(cls, text: str, sha256: str = "") -> FromUrl:
        """ValueError for what is no URL, or for a sum of a model that has several parts."""
        url = URL(text)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("a URL must begin with http:// or https:// and name a host")
        if sha256 and len(_parts_of(url)) > 1:
            raise ValueError("a checksum is that of one file, and this model has several parts")
        return cls(url, sha256)

    @property
    def name(self) -> str:
        return Split.of(file_name_of(self.url)).stem

    async def files(self, terms: Terms, on_progress: Callable[[float], None]) -> ModelFiles:
        wanted = [Wanted(url, terms.cache.of_url(url), sha256=self.sha256) for url in _parts_of(self.url)]
        if terms.is_offline:
            return ModelFiles(_all_here(wanted, terms.cache)[0])
        async with Client.open(terms.token, terms.endpoint) as client:
            with Display(len(wanted), on_progress, has_bar=terms.has_bar) as display:
                paths = [await self._bring(part, client, terms, display, index) for index, part in enumerate(wanted)]
        return ModelFiles(paths[0])

    async def _bring(self, part: Wanted, client: Client, terms: Terms, display: Display, index: int) -> Path:
        target = part.place.target
        is_here = target.exists()
        if is_here and not await self._is_outdated(client, part.url, target, terms.patience.briefly()):
            return target
        transfer = Transfer(client, part, display.gauge(index, target.name), terms.patience)
        return await transfer.run(replaces=is_here)

    async def _is_outdated(self, client: Client, url: URL, target: Path, patience: Patience) -> bool:
        """Whether what is here is not what is wanted. A server that cannot be asked leaves us with what is here."""
        if self.sha256:
            return await _sha256_of(target) != self.sha256
        noted = etag_path_of(target)
        etag = noted.read_text() if noted.exists() else ""

        async def look() -> bool:
            async with client.get(url, {"If-None-Match": etag} if etag else {}, method="HEAD") as answer:
                told = answer.headers.get("ETag", "")
                return answer.status != 304 and bool(told) and told != etag

        try:
            return await patience.see_through(look)
        except DownloadFailed as error:
            log.warning("the server cannot be asked; taking what is in the cache", file=target.name, reason=str(error))
            return False


@dataclass(frozen=True, slots=True)
class FromHub:
    repo: str
    quant: str = ""
    file: str = ""
    """Stands before `quant`."""
    revision: str = "main"

    @classmethod
    def of(cls, text: str, *, file: str = "", revision: str = "main") -> FromHub:
        """From `USER/MODEL[:QUANT]`. ValueError, with the flag that is at fault."""
        repo, _, quant = text.partition(":")
        # What a hub allows; no name that starts with a dot or a dash, or has two of them, can be a path elsewhere.
        if re.fullmatch(r"(?=.{1,200}$)\w+(?:[.-]\w+)*/\w+(?:[.-]\w+)*", repo, re.ASCII) is None:
            raise ValueError(f"--hf-repo: {repo or 'nothing'} is no repository; it must be USER/MODEL[:QUANT]")
        if file and not is_safe(file):
            raise ValueError(f"--hf-file: {file} is no file of a repository")
        if not is_safe(revision):
            raise ValueError(f"--hf-revision: {revision} is no revision")
        return cls(repo, quant, file, revision)

    @property
    def name(self) -> str:
        """As it was asked for, which is llama-server's name for it too."""
        return f"{self.repo}:{self.quant}" if self.quant else self.repo

    async def files(self, terms: Terms, on_progress: Callable[[float], None]) -> ModelFiles:
        cache = terms.cache
        async with Client.open(terms.token, terms.endpoint) as client:
            commit, listed, trouble = await self._look(client, terms)
            try:
                parts = model_parts(listed, self.quant, self.file)
            except ValueError as error:
                if trouble:  # what is here tells nothing of what the hub has
                    raise DownloadFailed(f"{trouble}, and what is here of {self.repo} {error}") from None
                raise DownloadFailed(f"{self.repo} {error}") from None
            projector = projector_of(listed, parts[0].path) if terms.wants_projector else None
            files = [*parts, *([projector] if projector else [])]
            with Display(len(files), on_progress, has_bar=terms.has_bar) as display:
                for index, file in enumerate(files):
                    if cache.path_of(self.repo, commit, file).exists():
                        continue
                    wanted = Wanted(
                        hub_url(terms.endpoint, f"{self.repo}/resolve/{commit}/{file.path}"),
                        cache.of_blob(self.repo, file),
                        size=file.size,
                        sha256=file.sha256,
                    )
                    await Transfer(client, wanted, display.gauge(index, file.path), terms.patience).run()
                    cache.link(self.repo, commit, file)
        paths = [cache.path_of(self.repo, commit, file) for file in files]
        return ModelFiles(paths[0], paths[-1] if projector else None)

    async def _look(self, client: Client, terms: Terms) -> tuple[str, Sequence[RemoteFile], str]:
        """The commit, and its files: as the hub has them, or those that are here, and why the hub was not asked."""
        cache = terms.cache
        known = cache.commit(self.repo, self.revision)
        here = cache.files(self.repo, known) if known else []
        trouble = DownloadFailed(f"{self.name} is not in {cache.folder}, and --offline keeps it from being fetched")
        if not terms.is_offline:
            hub = Hub(client, terms.endpoint, terms.patience.briefly() if here else terms.patience)
            try:
                commit = await hub.commit(self.repo, self.revision)
                files = await hub.files(self.repo, commit)
            except DownloadFailed as error:
                trouble = error
            else:
                with contextlib.suppress(OSError):  # a cache that cannot be written may still have all
                    cache.remember(self.repo, self.revision, commit)
                return commit, files, ""
        if known is None or not here:
            raise trouble
        if not terms.is_offline:
            log.warning("the hub cannot be asked; taking what is in the cache", reason=str(trouble), commit=known)
            return known, here, str(trouble)
        return known, here, "--offline asks no hub"


async def _sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while await asyncio.to_thread(read_stretch, file, digest.update):
            pass
    return digest.hexdigest()


def _parts_of(url: URL) -> list[URL]:
    split = Split.of(url.name)
    return [url.with_name(name).with_query(url.query) for name in split.paths()] if split.n_parts > 1 else [url]


def _all_here(wanted: list[Wanted], cache: Cache) -> list[Path]:
    for part in wanted:
        if not part.place.target.exists():
            raise DownloadFailed(f"{part.url.name} is not in {cache.folder}, and --offline keeps it from being fetched")
    return [part.place.target for part in wanted]
