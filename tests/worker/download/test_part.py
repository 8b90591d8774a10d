"""What has come of a file so far."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.download.part import NotGguf, Part


def test_a_part_that_was_not_taken_up_yet_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf.part"
    path.write_bytes(b"GGUF and more")
    with Part(path):
        pass
    assert path.read_bytes() == b"GGUF and more"


def test_nothing_is_left_of_nothing(tmp_path: Path) -> None:
    with Part(tmp_path / "folder" / "m.gguf.part"):
        pass
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_beginning_may_come_in_any_pieces(tmp_path: Path) -> None:
    with Part(tmp_path / "part") as part:
        for piece in (b"G", b"GU", b"F", b"...."):
            part.push(piece)
        part.finish(tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").read_bytes() == b"GGUF...."


@pytest.mark.parametrize("pieces", [[b"G", b"<"], [b"<"], [b"GGU", b"X"], [b"GGM"]])
def test_what_begins_otherwise_is_not_kept(tmp_path: Path, pieces: list[bytes]) -> None:
    with Part(tmp_path / "part") as part, pytest.raises(NotGguf):
        for piece in pieces:
            part.push(piece)
    assert not (tmp_path / "part").exists()


def test_the_etag_goes_with_the_file(tmp_path: Path) -> None:
    with Part(tmp_path / "part") as part:
        part.start_over('"v1"')
        part.push(b"GGUF")
    with Part(tmp_path / "part") as part:
        assert part.etag == '"v1"'
        part.take_up()
        part.finish(tmp_path / "m.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "m.gguf.etag"]
