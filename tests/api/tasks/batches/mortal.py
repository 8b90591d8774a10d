"""A process that dies at a moment that is counted, not waited for: behind its nth call of the bus or of the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from shared.bus import Bus
from shared.store import Store, Writer


class Death(BaseException):
    """Nothing that is done about errors is done about this one."""


class Life:
    def __init__(self, n_calls: int) -> None:
        """`n_calls`: what it does before it dies; the last of them happens, and nobody hears of it."""
        self.n_left = n_calls
        self.calls: list[str] = []

    def spend(self, name: str) -> None:
        self.calls.append(name)
        self.n_left -= 1
        if self.n_left <= 0:
            raise Death(name)


class MortalPart:
    """Anything whose methods are awaited."""

    def __init__(self, part: object, life: Life, name: str) -> None:
        self._part, self._life, self._name = part, life, name

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._part, name)

        async def call(*arguments: Any, **more: Any) -> Any:
            result = await method(*arguments, **more)
            self._life.spend(f"{self._name}.{name}")
            return result

        return call


class MortalBus:
    def __init__(self, bus: Bus, life: Life) -> None:
        self.batches = MortalPart(bus.batches, life, "batches")
        self.files = MortalPart(bus.files, life, "files")
        self.queue = MortalPart(bus.queue, life, "queue")


class MortalStore:
    """Reading kills nobody: what is read is still there."""

    def __init__(self, store: Store, life: Life) -> None:
        self._store, self._life = store, life
        self.read, self.at_hand = store.read, store.at_hand

    async def put(self, name: str, data: bytes) -> None:
        await self._store.put(name, data)
        self._life.spend("store.put")

    @asynccontextmanager
    async def writing(self, name: str) -> AsyncIterator[Writer]:
        async with self._store.writing(name) as writer:
            yield writer
            self._life.spend("store.writing, before its end")
        self._life.spend("store.writing")


def mortal(bus: Bus, store: Store, life: Life) -> tuple[Bus, Store]:
    return cast(Bus, MortalBus(bus, life)), cast(Store, MortalStore(store, life))
