"""What is true of a store in a folder alone."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import StoreUnavailable
from shared.settings import ConfigError
from shared.store import default_folder, open_store

WRITE_AND_HANG = """
import asyncio, sys
from shared.store import open_store

async def main():
    async with open_store(sys.argv[1]) as store, store.writing("files/a") as writer:
        await writer.write(b"half")
        print("written", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "above" / "store"


async def test_only_its_owner_can_look_into_it(folder: Path) -> None:
    umask = os.umask(0)
    try:
        async with open_store(str(folder)) as store:
            await store.put("batches/batch_0_a/plan", b"x")
    finally:
        os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in [folder.parent, *folder.parent.rglob("*")] if path.is_dir()} == {
        0o700
    }
    assert (folder / "batches/batch_0_a/plan").stat().st_mode & 0o777 == 0o600


async def test_a_folder_that_is_away_is_an_unavailable_store_and_not_made_anew_by_a_writer(folder: Path) -> None:
    async with open_store(str(folder)) as store:
        away = folder.with_name("away")
        await asyncio.to_thread(folder.rename, away)
        with pytest.raises(StoreUnavailable):
            await store.put("files/a", b"x")
        await asyncio.to_thread(away.rename, folder)  # which is not there
        await store.put("files/a", b"x")


async def test_a_folder_that_went_in_the_middle_of_an_object_is_an_unavailable_store(folder: Path) -> None:
    async with open_store(str(folder)) as store:
        with pytest.raises(StoreUnavailable):
            async with store.writing("files/a") as writer:
                await writer.write(b"x")
                shutil.rmtree(folder)


async def test_a_store_that_somebody_emptied_can_be_written_again(folder: Path) -> None:
    async with open_store(str(folder)) as store:
        shutil.rmtree(folder)
        await asyncio.to_thread(folder.mkdir)
        await asyncio.gather(*(store.put(f"files/{n}", b"x") for n in range(20)))
        assert [part async for part in store.read("files/0")] == [b"x"]


async def test_the_folder_of_a_batch_goes_with_its_last_object(folder: Path) -> None:
    async with open_store(folder.as_uri()) as store:
        await store.put("batches/batch_0_a/plan", b"x")
        await store.put("batches/batch_0_a/000000.output", b"x")
        await store.delete(["batches/batch_0_a/plan"])
        assert (folder / "batches/batch_0_a").is_dir()
        await store.delete(["batches/batch_0_a/000000.output"])
        assert not (folder / "batches/batch_0_a").exists()


async def test_a_killed_writer_leaves_no_object_and_what_it_leaves_goes_when_it_is_old(folder: Path) -> None:
    program = (sys.executable, "-c", WRITE_AND_HANG, str(folder))
    writer = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    assert writer.stdout is not None
    assert await writer.stdout.readline() == b"written\n"
    writer.kill()
    await writer.wait()
    async with open_store(str(folder)) as store:
        assert [name async for name, _ in store.names()] == []
        assert len(list((folder / "partial").iterdir())) == 1
        assert await store.drop_unfinished(time.time() - 60) == 0
        assert await store.drop_unfinished(time.time() + 60) == 1
        assert list((folder / "partial").iterdir()) == []


@pytest.fixture
def no_room() -> Iterator[None]:
    """Files of this process may not grow beyond a kilobyte: the disk is full, as far as it can tell."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_write_that_fails_is_said_in_one_sentence_and_leaves_nothing(folder: Path, no_room: None) -> None:
    async with open_store(str(folder)) as store:
        with pytest.raises(StoreUnavailable, match=r"^The store of files cannot be used now: file too large\.$"):
            await store.put("files/a", b"x" * 5000)
        assert [name async for name, _ in store.names()] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of a megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


async def test_a_full_disk_is_said_in_one_sentence_and_its_room_is_given_back(small_disk: Path) -> None:
    async with open_store(str(small_disk / "store")) as store:
        with pytest.raises(StoreUnavailable, match=r"^The store of files is full\.$"):
            await store.put("files/a", b"x" * (2 << 20))
        await store.put("files/a", b"x" * 900_000)


async def test_a_folder_that_went_away_is_said_in_one_sentence(folder: Path) -> None:
    async with open_store(str(folder)) as store:
        (folder / "partial").rmdir()
        (folder / "partial").write_text("in the way")
        with pytest.raises(StoreUnavailable, match="not a directory"):
            await store.put("files/a", b"x")


async def test_a_folder_that_cannot_be_is_named_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^--store-url: cannot make the folder .*/file/store: not a directory"):
        async with open_store(str(tmp_path / "file" / "store")):
            pass
    with pytest.raises(ConfigError, match="file:///PATH"):
        async with open_store("file://relative"):
            pass


def test_without_a_url_it_is_in_the_users_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "slotstream" / "files"
