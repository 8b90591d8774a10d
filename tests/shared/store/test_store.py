"""What every kind of store promises."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from threading import Event

import pytest

from shared.errors import StoreUnavailable, UnknownFile
from shared.store import PIECE, Store, open_store
from shared.store.folder import Folder

NAME = "files/file-0_a1"
LARGE = bytes(range(256)) * (12 * PIECE // 256) + b"end"
"""More than a part of an upload to S3."""


async def content(store: Store, name: str, start: int = 0, stop: int | None = None) -> bytes:
    pieces = [piece async for piece in store.read(name, start, stop)]
    assert all(0 < len(piece) <= PIECE for piece in pieces)
    return b"".join(pieces)


async def names(store: Store, prefix: str = "") -> set[str]:
    return {name async for name, _ in store.names(prefix)}


@pytest.mark.parametrize("data", [b"", b"hello", LARGE], ids=["empty", "small", "large"])
async def test_what_is_put_is_read(store: Store, data: bytes) -> None:
    await store.put(NAME, data)
    assert await content(store, NAME) == data
    assert await store.size(NAME) == len(data)


async def test_any_part_can_be_read(store: Store) -> None:
    await store.put(NAME, b"0123456789")
    assert await content(store, NAME, 2, 5) == b"234"
    assert await content(store, NAME, 8, 100) == b"89"
    assert await content(store, NAME, 10) == b""
    assert await content(store, NAME, 5, 5) == b""


async def test_a_second_put_replaces_the_first(store: Store) -> None:
    await store.put(NAME, b"long before")
    await store.put(NAME, b"after")
    assert await content(store, NAME) == b"after"


async def test_pieces_become_one_object_that_appears_at_the_end(store: Store) -> None:
    async with store.writing(NAME) as writer:
        for start in range(0, len(LARGE), PIECE):
            await writer.write(LARGE[start : start + PIECE])
        with pytest.raises(UnknownFile):
            await store.size(NAME)
    assert await content(store, NAME) == LARGE


@pytest.mark.parametrize("data", [b"small", LARGE], ids=["small", "large"])
async def test_of_what_is_broken_off_nothing_is_left(store: Store, data: bytes) -> None:
    with pytest.raises(ZeroDivisionError):
        async with store.writing(NAME) as writer:
            await writer.write(data)
            raise ZeroDivisionError
    assert await names(store) == set()
    assert await store.drop_unfinished(time.time() + 60) == 0, "nor anything that takes room"


async def test_of_what_is_cancelled_nothing_is_left_and_what_was_there_stays(store: Store) -> None:
    await store.put(NAME, b"before")
    is_written = asyncio.Event()

    async def write() -> None:
        async with store.writing(NAME) as writer:
            await writer.write(LARGE)
            is_written.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await is_written.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await names(store) == {NAME}
    assert await store.drop_unfinished(time.time() + 60) == 0
    assert await content(store, NAME) == b"before"


async def test_what_is_not_there_is_unknown(store: Store) -> None:
    with pytest.raises(UnknownFile):
        await content(store, NAME)
    with pytest.raises(UnknownFile):
        await store.size(NAME)
    with pytest.raises(UnknownFile):
        async with store.at_hand(NAME):
            pass


async def test_what_is_deleted_is_gone_and_may_be_deleted_again(store: Store) -> None:
    for number in range(3):
        await store.put(f"batches/batch_0_a/{number}", b"x")
    await store.delete(["batches/batch_0_a/0", "batches/batch_0_a/7", "batches/batch_0_a/1"])
    assert await names(store) == {"batches/batch_0_a/2"}
    await store.delete(["batches/batch_0_a/0"])
    await store.delete([])


async def test_what_is_whole_is_not_dropped_with_what_is_not(store: Store) -> None:
    await store.put(NAME, LARGE)
    assert await store.drop_unfinished(time.time() + 60) == 0
    assert await names(store) == {NAME}


async def test_what_is_being_written_is_in_no_list_and_can_be_dropped(store: Store) -> None:
    with pytest.raises(StoreUnavailable):
        async with store.writing(NAME) as writer:
            await writer.write(LARGE)
            assert await names(store) == set()
            assert await store.drop_unfinished(1e9) == 0  # moto dates all uploads to 2010
            assert await store.drop_unfinished(time.time() + 60) == 1
    assert await names(store) == set()


async def test_names_are_listed_below_a_prefix_with_their_times(store: Store) -> None:
    for name in ("files/a", "files/b", "batches/c/plan"):
        await store.put(name, b"x")
    assert await names(store) == {"files/a", "files/b", "batches/c/plan"}
    assert await names(store, "batches/") == {"batches/c/plan"}
    assert await names(store, "nothing/") == set()
    changed = [moment async for _, moment in store.names("files/")]
    assert all(abs(time.time() - moment) < 60 for moment in changed)


async def test_an_object_can_be_had_at_hand(store: Store) -> None:
    await store.put(NAME, LARGE)
    async with store.at_hand(NAME) as path:
        assert path.read_bytes() == LARGE
        assert path.stat().st_mode & 0o077 == 0
        with path.open("rb") as file:
            file.seek(PIECE + 3)
            assert file.read(4) == LARGE[PIECE + 3 : PIECE + 7]
    assert await content(store, NAME, 0, 3) == LARGE[:3]


async def test_a_reader_may_leave_early(store: Store) -> None:
    await store.put(NAME, LARGE)
    async with aclosing(store.read(NAME)) as pieces:
        assert len(await anext(pieces)) == PIECE


async def test_what_is_opened_for_somebody_who_was_cancelled_is_closed_again(threads: ThreadPoolExecutor) -> None:
    """Or a crash loop would fill the disk with copies."""
    backend = SlowBackend()
    task = asyncio.create_task(Store(backend, threads).at_hand(NAME).__aenter__())
    assert await asyncio.to_thread(backend.is_opening.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not backend.is_dropped.is_set()
    backend.may_open.set()
    assert await asyncio.to_thread(backend.is_dropped.wait, 10)


class SlowBackend(Folder):
    """Takes its time for a copy."""

    def __init__(self) -> None:
        self.is_opening, self.may_open, self.is_dropped = Event(), Event(), Event()
        self.path = Path("copy")

    def fetch(self, name: str) -> SlowBackend:
        self.is_opening.set()
        assert self.may_open.wait(10)
        return self

    def drop(self) -> None:
        self.is_dropped.set()


async def test_many_write_at_once(store: Store) -> None:
    await asyncio.gather(*(store.put(f"files/{number}", b"%d" % number) for number in range(40)))
    assert [await content(store, f"files/{number}") for number in (0, 39)] == [b"0", b"39"]


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../up", "a/../b", "a//b", "a/", ".hidden", "a\nb", "é", "a/.b"])
async def test_a_name_that_could_leave_the_store_is_refused(name: str, tmp_path: Path) -> None:
    async with open_store(str(tmp_path)) as store:
        with pytest.raises(ValueError, match="not a name"):
            await store.put(name, b"x")
