"""Files that clients name stay in their folder, and are whole or not there."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

import pytest

from shared.errors import InvalidRequest, Unavailable
from shared.filenames import is_safe_filename
from shared.settings import ConfigError
from worker.slotfiles.folder import ABANDONED_S, UNFINISHED, SlotFolder

SAFE = ["a", "a.bin", "A b", "slot-1_2.state", "é", "日本", "😀.bin", "a.b.c", "x" * 255, "~", "-rf", "CON"]
UNSAFE = [
    *("", ".", "..", "../a", "a/b", "/a", "a\\b", "..\\a", "a..b", ".a", UNFINISHED, " a", "a ", "a.", "a\0b", "a\nb"),
    *(
        "a:b",
        "a*",
        "a?",
        '"',
        "<",
        ">",
        "|",
        "x" * 256,
        "é" * 128,
        "\ud800",
        "a\u202eb",
        "\ufeffa",
        "．．",
        "a∕b",
        "a\x7f",
    ),
    *("a\ue000", "\u2028"),
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "slots").mkdir()
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "slots"


def put(folder: SlotFolder, name: str, text: bytes = b"text") -> None:
    folder.write(name, len(text), lambda file: file.write(text) and None)


def get(folder: SlotFolder, name: str) -> bytes:
    with folder.reading(name) as (file, n_bytes):
        return file.read(n_bytes)


@pytest.mark.parametrize("name", SAFE)
def test_a_safe_name_names_a_file(place: Path, name: str) -> None:
    assert is_safe_filename(name)
    folder = SlotFolder(place)
    put(folder, name)
    assert get(folder, name) == b"text"
    assert [path.name for path in place.iterdir()] == [name]


@pytest.mark.parametrize("name", UNSAFE, ids=[ascii(name)[:20] for name in UNSAFE])
def test_any_other_reaches_no_file(place: Path, name: str) -> None:
    folder = SlotFolder(place)
    with pytest.raises(InvalidRequest, match="Invalid filename"):
        put(folder, name)
    with pytest.raises(InvalidRequest, match="Invalid filename"):
        get(folder, name)
    assert list(place.iterdir()) == []


def test_a_file_is_its_owners_alone_and_replaces_the_one_before(place: Path) -> None:
    folder = SlotFolder(place)
    for text in (b"first", b"second"):
        put(folder, "a", text)
        assert get(folder, "a") == text
    assert stat.S_IMODE((place / "a").stat().st_mode) == 0o600


@pytest.mark.parametrize("target", ["../secret", "nowhere", "."])
def test_no_link_is_followed(place: Path, target: str) -> None:
    (place / "a").symlink_to(target)
    folder = SlotFolder(place)
    with pytest.raises(InvalidRequest, match="its file cannot be opened"):
        get(folder, "a")
    with pytest.raises(InvalidRequest, match="something that is no file has that name"):
        put(folder, "a")
    assert (place.parent / "secret").read_text() == "secret"
    assert (place / "a").is_symlink()


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_neither_read_nor_replaced(place: Path, kind: str) -> None:
    (place / "a").mkdir() if kind == "folder" else os.mkfifo(place / "a")
    folder = SlotFolder(place)
    with pytest.raises(InvalidRequest, match="its file is none"):
        get(folder, "a")
    with pytest.raises(InvalidRequest, match="something that is no file has that name"):
        put(folder, "a")


def test_the_folder_is_the_one_that_was_opened_whatever_its_name_means_later(place: Path) -> None:
    folder = SlotFolder(place)
    moved = place.rename(place.with_name("moved"))
    place.symlink_to(place.parent)
    put(folder, "a")
    assert (moved / "a").read_bytes() == b"text"


def test_there_is_no_such_file(place: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no such file"):
        get(SlotFolder(place), "a")


@pytest.mark.parametrize(
    ("number", "why"),
    [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk is full"), (errno.EIO, "input/output")],
)
def test_a_disk_that_does_not_take_it_keeps_what_was_there(place: Path, number: int, why: str) -> None:
    def fail(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(number, os.strerror(number))

    folder = SlotFolder(place)
    put(folder, "a", b"before")
    with pytest.raises(Unavailable, match=f"Unable to save slot: {why}"):
        folder.write("a", 8, fail)
    assert get(folder, "a") == b"before"
    assert [path.name for path in place.iterdir()] == ["a"]


def test_what_cannot_fit_on_the_disk_is_not_begun(place: Path) -> None:
    folder = SlotFolder(place)
    with pytest.raises(Unavailable, match="have no room on the disk"):
        folder.write("a", 1 << 60, lambda file: pytest.fail("it was begun"))


def test_what_the_killed_left_is_cleared_away_and_nothing_else(place: Path) -> None:
    for name in (old := f"{UNFINISHED}old", new := f"{UNFINISHED}new", "slot"):
        (place / name).write_text("half")
    long_ago = (place / old).stat().st_mtime - ABANDONED_S - 1
    for name in (old, "slot"):
        os.utime(place / name, (long_ago, long_ago))
    SlotFolder(place)
    assert {path.name for path in place.iterdir()} == {new, "slot"}


@pytest.mark.parametrize("name", ["nowhere", "secret"])
def test_a_folder_that_is_none_is_one_sentence(place: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"^--slot-save-path: .*: (no such file or directory|not a directory)$"):
        SlotFolder(place.parent / name)
