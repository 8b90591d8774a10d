"""Takes out of the store what nobody needs any more. Each part may run at any time, twice at once, or not for a while.

Files whose time is over go with their records, and so does what batches leave besides their files. Once a day all of
the store is looked at for what no record knows: an upload that was cut off by a crash, say. That one never touches a
store that is another system's, or whose records were lost: it would empty it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import structlog
from arq.cron import CronJob, cron

from api.files.filed import remove
from api.tasks.arqworker import Trade
from shared.batches import error_file_id, output_file_id
from shared.bus import Bus
from shared.errors import Unavailable, UnknownFile
from shared.ids import Kind, partition_in
from shared.store import Store

CLEAR_EVERY_S = 10
SWEEP_HOURS = frozenset({4})
SPARED_S = 86400.0
"""Younger objects may be about to become known."""

AT_ONCE = 100
"""Files or batches that are looked at together."""

OWNER = "owner"
"""The object that names the system whose store it is."""

log = structlog.get_logger(__name__)


class Storekeeper:
    def __init__(self, bus: Bus, store: Store) -> None:
        self._bus = bus
        self._store = store
        self._is_clearing = False

    async def clear(self) -> None:
        """Delete files whose time is over, and what has been left of batches. Raises Unavailable."""
        if self._is_clearing:
            return  # that which was begun before is still at it
        self._is_clearing = True
        try:
            n_files, n_batches = await self._clear_files(), await self._clear_batches()
        finally:
            self._is_clearing = False
        if n_files or n_batches:
            log.info("cleared the store", files=n_files, batches=n_batches)

    async def sweep(self, now: float) -> None:
        """Delete what no record knows and is older than a day by `now`, in Unix time. Raises Unavailable."""
        if not await self._owns_store():
            return
        n_objects = await self._store.drop_unfinished(now - SPARED_S)
        async for names in _grouped(self._old_names(now)):
            unknown = await self._unknown(names)
            await self._store.delete(unknown)
            n_objects += len(unknown)
        if n_objects:
            log.info("swept the store", objects=n_objects)

    async def _clear_files(self) -> int:
        n_files = 0
        while overdue := await self._bus.files.overdue(AT_ONCE):
            await remove(self._bus, self._store, overdue)
            n_files += len(overdue)
        return n_files

    async def _clear_batches(self) -> int:
        n_batches = 0
        while remains := await self._bus.batches.overdue(AT_ONCE):
            for batch_id in (each.batch_id for each in remains):
                kept = await self._bus.files.objects([output_file_id(batch_id), error_file_id(batch_id)])
                there = [name async for name, _ in self._store.names(f"batches/{batch_id}/")]
                await self._store.delete(name for name in there if name not in kept)
                await self._bus.batches.forget(batch_id)
            n_batches += len(remains)
        return n_batches

    async def _owns_store(self) -> bool:
        system = (await self._bus.identity()).encode()
        try:
            owner = b"".join([piece async for piece in self._store.read(OWNER)])
        except UnknownFile:
            await self._store.put(OWNER, system)
            return True
        if owner != system:
            log.warning(
                "the store is another system's, or this one's records were lost: nothing is swept from it",
                setting="--store-url",
                advice=f"give each system a store of its own; if this one is, delete the object `{OWNER}` in it",
            )
        return owner == system

    async def _old_names(self, now: float) -> AsyncIterator[str]:
        for folder in ("files/", "batches/"):
            async for name, changed in self._store.names(folder):
                if now - changed > SPARED_S:
                    yield name

    async def _unknown(self, names: Sequence[str]) -> list[str]:
        """Those of objects, all of one folder, that no record knows."""
        if names[0].startswith("files/"):
            known = await self._bus.files.objects([name.removeprefix("files/") for name in names])
            return [name for name in names if name not in known]
        spared: set[str] = set()
        for batch_id in {name.split("/")[1] for name in names}:
            if await self._bus.batches.record(batch_id) is not None:
                spared |= {name for name in names if name.split("/")[1] == batch_id}  # see `clear`
            elif _is_batch(batch_id):
                spared |= await self._bus.files.objects([output_file_id(batch_id), error_file_id(batch_id)])
        return [name for name in names if name not in spared]


async def _grouped(names: AsyncIterator[str]) -> AsyncIterator[list[str]]:
    """In the same order, AT_ONCE together at most and all of one folder."""
    group: list[str] = []
    async for name in names:
        if group and (len(group) == AT_ONCE or name.split("/")[0] != group[0].split("/")[0]):
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def _is_batch(text: str) -> bool:
    try:
        partition_in(text, Kind.BATCH)
    except ValueError:
        return False
    return True


async def clear(ctx: dict[str, Any]) -> None:
    keeper: Storekeeper = ctx["storekeeper"]
    await _tried("cleared", keeper.clear)


async def sweep(ctx: dict[str, Any]) -> None:
    keeper: Storekeeper = ctx["storekeeper"]
    await _tried("swept", lambda: keeper.sweep(time.time()))


async def _tried(what: str, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except Unavailable as error:
        log.warning(f"the store was not {what}", reason=error.message)


def trade(namespace: str) -> Trade:
    """A worker of its own: a large store takes long, and nothing else should wait for it."""
    return Trade("store", cron_jobs=tuple(_cron_jobs(namespace)), timeout_s=3600, max_jobs=2)


def _cron_jobs(namespace: str) -> list[CronJob]:
    """The names carry the namespace, as the janitor's."""
    every = set(range(5, 60, CLEAR_EVERY_S))
    once = {"run_at_startup": True, "max_tries": 1, "keep_result": 0}
    return [
        cron(clear, name=f"{namespace}:store-clear", second=every, **once),
        cron(sweep, name=f"{namespace}:store-sweep", hour=set(SWEEP_HOURS), minute={20}, second={0}, **once),
    ]
