"""The store: bytes under names, in a folder or behind a URL. The same one for all processes of a system.

async with open_store(url) as store:
    async with store.writing("files/x") as writer:  # appears whole at the clean end, or not at all
        await writer.write(b"...")
    async for piece in store.read("files/x", start=0, stop=100): ...

Names are made by us alone. Knows no file of a client, no tenant and no Redis. Everything that may wait is done in
threads of the store's own: a slow disk or network holds up nobody's event loop, and no other work of threads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from shared.settings import ConfigError
from shared.store.backend import Backend, Sink
from shared.store.folder import Folder, default_folder
from shared.store.remote import Remote

__all__ = ["PIECE", "Store", "Writer", "default_folder", "open_store"]

PIECE = 1 << 20
"""Bytes that are read, and that may be written, at once."""

THREADS = 16
NAMES_AT_ONCE = 1000

_NAME = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9_.-]*(/[a-zA-Z0-9_-][a-zA-Z0-9_.-]*)*", re.ASCII)

_T = TypeVar("_T")


class Writer(Protocol):
    async def write(self, piece: bytes) -> None:
        """Raises StoreUnavailable."""


class Store:
    """All methods raise StoreUnavailable when the store cannot be reached, is full or refuses, in one sentence."""

    def __init__(self, backend: Backend, threads: ThreadPoolExecutor) -> None:
        self._backend = backend
        self._threads = threads

    async def put(self, name: str, data: bytes) -> None:
        """The object is there whole afterwards, in place of one that was, or nothing has changed."""
        async with self.writing(name) as writer:
            await writer.write(data)

    @asynccontextmanager
    async def writing(self, name: str) -> AsyncIterator[Writer]:
        """An object that is made piece by piece. It appears at the clean end; when the body raises, or is cancelled,
        nothing does."""
        sink = await self._opened(self._backend.create, name, lambda sink: sink.abort())
        try:
            yield _SinkWriter(self, sink)
            await self._run(sink.commit)
        except BaseException:
            # In a thread that nobody cancels, behind whatever that sink is still busy with.
            await asyncio.shield(self._run(sink.abort))
            raise

    async def read(self, name: str, start: int = 0, stop: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` to before `stop` (None: to the end), in pieces of PIECE at most. Close it (`aclosing`)
        when you leave early. Raises UnknownFile before the first piece when there is no such object."""
        source = await self._opened(self._backend.open, name, lambda source: source.close())
        try:
            stop = source.size if stop is None else min(stop, source.size)
            while start < stop:
                piece = await self._run(source.read, start, min(PIECE, stop - start))
                start += len(piece)
                yield piece
        finally:
            await asyncio.shield(self._run(source.close))

    async def size(self, name: str) -> int:
        """Bytes. Raises UnknownFile."""
        return await self._run(self._backend.size, _checked(name))

    async def delete(self, names: Iterable[str]) -> None:
        """Objects that are not there are fine."""
        checked = [_checked(name) for name in names]
        for first in range(0, len(checked), NAMES_AT_ONCE):
            await self._run(self._backend.delete, checked[first : first + NAMES_AT_ONCE])

    async def names(self, prefix: str = "") -> AsyncIterator[tuple[str, float]]:
        """Every object whose name begins with the folders in `prefix` (`files/`), with the Unix time of its last
        change."""
        listing = await self._run(self._backend.names, prefix)
        while page := await self._run(lambda: list(islice(listing, NAMES_AT_ONCE))):
            for entry in page:
                yield entry

    async def drop_unfinished(self, before: float) -> int:
        """Deletes what crashed writers left, if nothing was written to it since that Unix time. Returns how many there
        were."""
        return await self._run(self._backend.drop_unfinished, before)

    @asynccontextmanager
    async def at_hand(self, name: str) -> AsyncIterator[Path]:
        """A file of this machine with the object's bytes, to be read at random and left as it is: the object itself
        where that is one, else a copy that goes with the context. Raises UnknownFile."""
        copy = await self._opened(self._backend.fetch, name, lambda copy: copy.drop())
        try:
            yield copy.path
        finally:
            await asyncio.shield(self._run(copy.drop))

    async def _opened(self, open_: Callable[[str], _T], name: str, close: Callable[[_T], None]) -> _T:
        """What must be closed by whoever gets it; whoever is cancelled gets nothing, so it is closed for him."""
        opening = asyncio.ensure_future(self._run(open_, _checked(name)))

        def close_it(opened: asyncio.Future[_T]) -> None:
            if not opened.cancelled() and opened.exception() is None:
                self._later(close, opened.result())

        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(close_it)
            raise

    def _later(self, work: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the threads have gone, and the process is about to
            self._threads.submit(work, *arguments)

    async def _run(self, work: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


class _SinkWriter:
    def __init__(self, store: Store, sink: Sink) -> None:
        self._store = store
        self._sink = sink

    async def write(self, piece: bytes) -> None:
        await self._store._run(self._sink.write, piece)


@asynccontextmanager
async def open_store(url: str = "") -> AsyncIterator[Store]:
    """The store behind a URL, a folder's path, or "" for `default_folder()`. A folder is made when it is missing;
    what is elsewhere is not asked for before it is used. Raises ConfigError."""
    backend = _backend_of(url)
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store")
    try:
        yield Store(backend, threads)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _backend_of(url: str) -> Backend:
    scheme, is_url, rest = url.partition("://")
    if not url:
        return Folder(default_folder())
    if not is_url:
        return Folder(Path(url))
    if scheme == "file":
        if not rest.startswith("/"):
            raise ConfigError("--store-url: a folder is file:///PATH, or just its path")
        return Folder(Path(rest))
    return Remote(url)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a name of an object: {name!r}")
    return name
