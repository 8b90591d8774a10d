"""What is too large for Redis: texts of jobs that lie in the store of files, with a reference in the job's hash.

A reference takes the text's place: `@<mark> <bytes> <object>`. Texts begin with a brace, so nobody takes one for the
other. A *mark* tells one store from another: an object with a random name that the first process to open a store puts
into it. Two processes share a store when they see the same mark, whatever their URLs say.

A job's hash has the mark of whoever made it, who will read its result: a worker that sees that mark too puts what is
large there. A request is put there only when all workers of its model see the mark, and is handed out only to such.
Nothing rests on the store being there: what cannot be put into it stays in Redis, as it does without a store.

An object's name is of its job, and of no other writer: whoever has lost a lease replaces nothing. Objects go with their
job; `sweep` takes those that a crash or an expiry has left. Knows nothing of what texts say.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import structlog

from shared.bus.connect import Sender
from shared.bus.keys import Keys
from shared.bus.presence import Presence
from shared.bus.script import ask
from shared.errors import BusUnavailable, StoreUnavailable, UnknownFile
from shared.store import Store

LARGE = 256_000
"""Bytes of a text from which on it lies in the store."""

MARKS, OBJECTS = "marks/", "large/"
"""What the names of objects begin with here."""

LOOK_EVERY_S, LOOK_AGAIN_S = 60.0, 5.0
"""Between two looks for marks, and before the next one at a store that was away."""

LOOK_PATIENCE_S = 5.0
"""For one look: whoever starts waits for it."""

PATIENCE_S = 15.0
"""For the store, and a second more for each of BYTES_PER_S: a text that cannot be put there by then stays in Redis."""
BYTES_PER_S = 2_000_000

FRESH_S = 1.0
"""For so long it is believed what workers of a model said of their stores."""

LATE_S = (0.1, 0.5)
"""Pauses before an object that was not found is asked for again: on a shared folder it may be seen late."""

GRACE_S = 600.0
"""Age from which on an object counts as left: its job's hash is written a moment after it."""

SWEPT_AT_ONCE = 500

ELSEWHERE = "It lies in a store of files that this process does not have: give all of them the same --store-url."

log = structlog.get_logger(__name__)


class Reference(NamedTuple):
    """Where a text lies."""

    mark: str
    n_bytes: int
    name: str

    def __str__(self) -> str:
        return f"@{self.mark} {self.n_bytes} {self.name}"

    @classmethod
    def in_place_of(cls, value: str | bytes) -> Reference | None:
        """What stands in a hash, as a reference; None when it is the text itself."""
        text = value.decode() if isinstance(value, bytes) and value[:1] == b"@" else value
        if not isinstance(text, str) or not text.startswith("@"):
            return None
        mark, n_bytes, name = text[1:].split(" ")
        return cls(mark, int(n_bytes), name)


class Annex:
    """Without a store nothing is put anywhere, and what others have put somewhere cannot be read."""

    def __init__(self, keys: Keys, link: Sender, presence: Presence, store: Store | None) -> None:
        self._keys = keys
        self._link = link
        self._presence = presence
        self._store = store
        self._marks: frozenset[str] = frozenset()
        self._bus_id = ""
        self._shared: dict[str, tuple[float, bool]] = {}
        """By model: when its workers were asked, and whether all of them see our mark."""
        self._lost = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Knows its marks while the block runs."""
        if self._store is None:
            yield
            return
        await self.look()
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.wait((watch,))

    @property
    def marks(self) -> frozenset[str]:
        """Those in this process's store: mostly one. Empty while it is away."""
        return self._marks

    @property
    def mark(self) -> str:
        """The one that our jobs name; empty while there is no store, or it is away."""
        return min(self._marks, default="")

    async def look(self) -> None:
        """For marks; the first to look puts one."""
        assert self._store
        try:
            async with asyncio.timeout(LOOK_PATIENCE_S):
                found = [name async for name, _ in self._store.names(MARKS)]
                if not found:
                    found = [f"{MARKS}{secrets.token_hex(6)}"]
                    await self._store.put(found[0], b"whoever sees this shares the store\n")
        except (StoreUnavailable, TimeoutError) as error:
            self._lose_sight(error)
        else:
            self._marks = frozenset(name.removeprefix(MARKS) for name in found)

    async def put_request(self, job_id: str, model: str, kind: str, text: str) -> str:
        """What is to stand in the hash of a job that is being made: `text`, or a reference to it."""
        raw = _if_large(text)
        if raw is None or not await self._is_shared_by_workers(model):
            return text
        # A name of its own each time: a job may be made by two at once, and one of them be told no.
        return await self._put(self.mark, f"{job_id}.{kind}-{secrets.token_hex(8)}", raw) or text

    async def put_result(self, job_id: str, writer: str, text: str) -> str:
        """The same of an ending. `writer` is unlike any other of the job: the same one replaces what it has put."""
        raw = _if_large(text)
        if raw is None or not self._marks:
            return text
        [mark] = await ask(self._link, [("HGET", self._keys.job(job_id), "store")])
        if not mark or mark.decode() not in self._marks:
            return text
        return await self._put(mark.decode(), f"{job_id}.result-{writer}", raw) or text

    async def fetch(self, value: bytes) -> bytes:
        """The text that `value` is or refers to. Raises StoreUnavailable, and UnknownFile when it is gone for good."""
        reference = Reference.in_place_of(value)
        if reference is None:
            return value
        for pause_s in (*LATE_S, None):
            try:
                return await self._read(reference)
            except UnknownFile:
                if reference.mark not in self._marks:
                    raise StoreUnavailable(ELSEWHERE) from None
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)
        raise AssertionError

    async def drop(self, values: Iterable[str | bytes]) -> None:
        """Deletes what some values refer to, if they do; what cannot be deleted now is left to `sweep`."""
        names = [reference.name for value in values if (reference := Reference.in_place_of(value))]
        if names and self._store:
            try:
                await self._store.delete(names)
            except StoreUnavailable as error:
                log.debug("objects are left to be swept", n_objects=len(names), reason=error.message)

    async def identity(self) -> str:
        """Names this queue among all that use a store: nobody sweeps what is another's. A server that lost its data is
        another queue from then on. Raises BusUnavailable."""
        key = self._keys.identity
        [found] = await ask(self._link, [("GET", key)])  # first: a full server takes no SET
        if found is None:
            [_, found] = await ask(self._link, [("SET", key, secrets.token_hex(8), "NX"), ("GET", key)])
        text: str = found.decode()
        return text

    async def sweep(self) -> int:
        """Deletes objects whose job is gone; how many. May be done at any time, by several at once. Raises
        StoreUnavailable and BusUnavailable: then the rest is for the next time."""
        if self._store is None:
            return 0
        home = f"{OBJECTS}{await self._id_of_bus()}/"
        n_deleted, old = 0, []
        async for name, changed_at in self._store.names(home):
            if time.time() - changed_at > GRACE_S:
                old.append(name)
            if len(old) >= SWEPT_AT_ONCE:
                n_deleted += await self._delete_orphans(home, old)
                old = []
        return n_deleted + await self._delete_orphans(home, old)

    async def _delete_orphans(self, home: str, names: Sequence[str]) -> int:
        assert self._store
        ids = [name.removeprefix(home).partition(".")[0] for name in names]
        are_there = await ask(self._link, [("EXISTS", self._keys.job(job_id)) for job_id in ids]) if ids else []
        orphans = [name for name, is_there in zip(names, are_there, strict=True) if not is_there]
        if orphans:
            await self._store.delete(orphans)
        return len(orphans)

    async def _put(self, mark: str, name: str, raw: bytes) -> str | None:
        """A reference to what lies in the store now; None when it does not."""
        assert self._store
        try:
            async with asyncio.timeout(PATIENCE_S + len(raw) / BYTES_PER_S):
                whole_name = f"{OBJECTS}{await self._id_of_bus()}/{name}"
                await self._store.put(whole_name, raw)
        except (StoreUnavailable, TimeoutError) as error:
            self._lose_sight(error)
            return None
        except BusUnavailable:
            return None  # whoever writes the hash hears of it
        return str(Reference(mark, len(raw), whole_name))

    async def _read(self, reference: Reference) -> bytes:
        if self._store is None:
            raise StoreUnavailable(ELSEWHERE)
        try:
            async with asyncio.timeout(PATIENCE_S + reference.n_bytes / BYTES_PER_S):
                raw = b"".join([piece async for piece in self._store.read(reference.name)])
        except TimeoutError as error:
            self._lose_sight(error)
            raise StoreUnavailable("The store of files does not answer in time.") from None
        except StoreUnavailable as error:
            self._lose_sight(error)
            raise
        if len(raw) != reference.n_bytes:
            raise UnknownFile(f"{reference.name} has {len(raw)} bytes of {reference.n_bytes}.")
        return raw

    async def _is_shared_by_workers(self, model: str) -> bool:
        """Whether all workers of a model see our mark, and there are some."""
        mark = self.mark
        if not mark:
            return False
        now = time.monotonic()
        asked_at, is_shared = self._shared.get(model, (-FRESH_S, False))
        if now - asked_at < FRESH_S:
            return is_shared
        workers = [worker for worker in await self._presence.workers() if worker.model.name == model]
        alive = [worker for worker in workers if worker.status != "failed"]
        is_shared = bool(alive) and all(mark in worker.stores for worker in alive)
        self._shared = {name: said for name, said in self._shared.items() if now - said[0] < FRESH_S}
        self._shared[model] = (now, is_shared)
        return is_shared

    async def _id_of_bus(self) -> str:
        if not self._bus_id:
            self._bus_id = await self.identity()
        return self._bus_id

    def _lose_sight(self, error: Exception) -> None:
        """Until the next look that succeeds all stays in Redis, and no job is claimed that would have to be read."""
        if self._marks:
            log.warning("the store of files is away", reason=str(error) or type(error).__name__)
        self._marks = frozenset()
        self._lost.set()

    async def _watch(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._lost.wait()
                await asyncio.sleep(LOOK_AGAIN_S)
            except TimeoutError:
                pass
            self._lost.clear()
            await self.look()


def _if_large(text: str) -> bytes | None:
    """Its bytes, if there are many."""
    if 4 * len(text) <= LARGE:
        return None
    raw = text.encode()
    return raw if len(raw) > LARGE else None
