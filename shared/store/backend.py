"""What a place for objects can do. All of it blocks, so it is done in threads, any number at once.

Errors are the store's own: UnknownFile where there is no such object, StoreUnavailable for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol


class Sink(Protocol):
    """An object that is being made. Its calls wait for each other."""

    def write(self, piece: bytes) -> None: ...

    def commit(self) -> None:
        """From now on it is there."""

    def abort(self) -> None:
        """As if it had never been begun. Raises nothing, and does nothing behind `commit`."""


class Source(Protocol):
    @property
    def size(self) -> int:
        """Bytes."""

    def read(self, start: int, n_bytes: int) -> bytes:
        """That many, which are there."""

    def close(self) -> None: ...


class LocalCopy(Protocol):
    @property
    def path(self) -> Path: ...

    def drop(self) -> None:
        """It is not needed any more. Raises nothing."""


class Backend(Protocol):
    def create(self, name: str) -> Sink: ...

    def open(self, name: str) -> Source: ...

    def size(self, name: str) -> int: ...

    def delete(self, names: Sequence[str]) -> None: ...

    def names(self, prefix: str) -> Iterator[tuple[str, float]]: ...

    def drop_unfinished(self, before: float) -> int:
        """Deletes what was written last before that Unix time and never came to its end. Returns how many there
        were."""

    def fetch(self, name: str) -> LocalCopy: ...
