"""Brings one file to its place: whole, checked, and fetched once however many ask for it.

Knows nothing of hubs and models but that a model begins with `GGUF`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import structlog
from yarl import URL

from worker.download.cache import Place
from worker.download.client import Answer, Client
from worker.download.failures import DownloadFailed, Interrupted
from worker.download.lock import locked
from worker.download.part import PIECE, NotGguf, Part
from worker.download.patience import Patience
from worker.download.progress import Gauge

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file somewhere, and what is known of it beforehand."""

    url: URL
    place: Place
    size: int | None = None
    sha256: str = ""
    """Of the whole. A part that is there is gone on from whoever sends the rest: the sum tells in the end."""


class Transfer:
    def __init__(self, client: Client, wanted: Wanted, gauge: Gauge, patience: Patience) -> None:
        self._client, self._wanted, self._gauge, self._patience = client, wanted, gauge, patience
        self._size, self._sha256 = wanted.size, wanted.sha256

    async def run(self, *, replaces: bool = False) -> Path:
        """The file, when it is there. `replaces` fetches what is there already anew. DownloadFailed, OSError."""
        target = self._wanted.place.target
        before = _stamp(target)
        async with locked(self._wanted.place.lock, self._show_the_other_s):
            if _stamp(target) == (before if replaces else None):
                await self._fetch(target)
        return target

    async def _fetch(self, target: Path) -> None:
        with Part(self._wanted.place.part) as part:
            while await asyncio.to_thread(part.take_up):
                self._gauge.show(part.size, self._size)
            n_kept = part.size
            try:
                await self._complete(part)
                if not self._is_right(part) and n_kept:
                    log.warning("the part from an earlier time did not fit; starting over", path=str(part.path))
                    part.start_over()
                    await self._complete(part)
                if not self._is_right(part):
                    found = part.sha256
                    part.start_over()
                    raise DownloadFailed(
                        f"{self._name} came with another checksum than it should have: SHA-256 {found} instead of"
                        f" {self._sha256}; it was not kept"
                    )
                await asyncio.to_thread(part.finish, target)
            except NotGguf:
                raise DownloadFailed(f"what {self._wanted.url.host} sends as {self._name} is no GGUF file") from None

    @property
    def _name(self) -> str:
        return self._wanted.url.name

    def _is_right(self, part: Part) -> bool:
        return not self._sha256 or part.sha256 == self._sha256

    async def _complete(self, part: Part) -> None:
        await self._patience.see_through(lambda: self._attempt(part), lambda: part.size)

    async def _attempt(self, part: Part) -> None:
        """Ask for what is missing and take it in. Interrupted when something is missing still."""
        if part.size and part.size == self._size:
            return
        async with self._client.get(self._wanted.url, _range_after(part, bool(self._sha256))) as answer:
            self._sha256 = self._sha256 or answer.linked_sha256
            if answer.status == 416:
                self._end_beyond(part, answer)
                return
            if answer.status == 206 and _start_of(answer) != part.size:
                part.start_over()
                raise Interrupted(f"{self._wanted.url.host} sends another part of {self._name} than was asked for")
            if answer.status != 206:
                part.start_over("" if self._wanted.sha256 else answer.headers.get("ETag", ""))
            self._size = self._total(part, answer)
            part.check_room(self._size)
            await self._take_in(part, answer)
        if self._size is not None and part.size != self._size:
            if part.size > self._size:
                part.start_over()
            raise Interrupted(f"{self._wanted.url.host} sent {part.size} of {self._size} bytes")

    async def _take_in(self, part: Part, answer: Answer) -> None:
        self._gauge.show(part.size, self._size)
        gathered = bytearray()
        try:
            async for piece in answer.content.iter_any():
                gathered += piece
                if len(gathered) >= PIECE or part.size == 0:
                    full, gathered = bytes(gathered), bytearray()
                    await asyncio.to_thread(part.push, full)
                self._gauge.show(part.size + len(gathered), self._size)
        finally:
            if gathered:  # of a connection that broke, too
                part.push(bytes(gathered))

    def _total(self, part: Part, answer: Answer) -> int | None:
        length = answer.headers.get("Content-Length", "")
        told = part.size + int(length) if length.isdigit() else None
        if self._wanted.size is not None and told not in (None, self._wanted.size):
            raise DownloadFailed(f"{self._name} has {told} bytes, and {self._wanted.size} were announced")
        return told if self._wanted.size is None else self._wanted.size

    def _end_beyond(self, part: Part, answer: Answer) -> None:
        """There is nothing after what we have: it is all, or it is of something else."""
        if answer.headers.get("Content-Range") != f"bytes */{part.size}":
            part.start_over()
            raise Interrupted(f"{self._wanted.url.host} has less of {self._name} than is here")

    def _show_the_other_s(self) -> None:
        n_there = 0
        with contextlib.suppress(FileNotFoundError):  # not begun yet, or whole just now
            n_there = self._wanted.place.part.stat().st_size
        self._gauge.show(n_there, self._size, is_waiting=True)


def _range_after(part: Part, is_content_known: bool) -> dict[str, str]:
    """Asks for the rest where it can be told that it is the rest of the same."""
    is_strong = bool(part.etag) and not part.etag.startswith("W/")  # a weak one does not promise the same bytes
    if not part.size or not (is_strong or is_content_known):
        return {}
    condition = {} if is_content_known else {"If-Range": part.etag}
    return {"Range": f"bytes={part.size}-", **condition}


def _start_of(answer: Answer) -> int | None:
    found = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _stamp(path: Path) -> tuple[int, int] | None:
    """Tells one file under a name from the next; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
