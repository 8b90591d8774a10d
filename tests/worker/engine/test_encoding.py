"""Which images are encoded, and which are known: by what they show, within a bound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models import write_projector
from tests.worker.engine.looking import picture, projector_of
from worker.engine import ImageRows, Picture, TooManyRows, Vision
from worker.engine.llama import Model, Projector

N_BYTES = 16 * 64 * 4
"""Of one picture's rows."""


@pytest.fixture(scope="module")
def projector(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Projector]:
    path = write_projector(tmp_path_factory.mktemp("models") / "p.gguf")
    with Model.load(byte_model) as model, Projector.load(model, projector_of(path)) as loaded:
        yield loaded


class Eye:
    """Counts which files it had to read."""

    def __init__(self, projector: Projector, n_pictures: int) -> None:
        self.vision = Vision(projector, n_ubatch=512, n_bytes=n_pictures * N_BYTES)
        self.read: list[int] = []

    def see(self, seed: int, n_room: int = 100) -> Picture:
        def read() -> object:
            self.read.append(seed)
            return picture(seed)

        return self.vision.picture(bytes([seed]), read, n_room, "image 1")  # type: ignore[arg-type]


def id_of(picture: Picture) -> int:
    [rows] = picture.parts
    assert isinstance(rows, ImageRows)
    return rows.id


def test_the_least_recently_seen_is_forgotten_and_has_its_id_when_it_comes_again(projector: Projector) -> None:
    eye = Eye(projector, 2)
    ids = [id_of(eye.see(seed)) for seed in (1, 2, 1, 3, 1, 2)]
    assert eye.read == [1, 2, 3, 2]
    assert ids == [-1, -2, -1, -3, -1, -2]


def test_one_that_is_larger_than_the_bound_is_seen_all_the_same(projector: Projector) -> None:
    eye = Eye(projector, 0)
    assert [id_of(eye.see(seed)) for seed in (1, 1, 2)] == [-1, -1, -2]
    assert eye.read == [1, 2]


def test_rows_are_the_same_again_when_they_are_made_again(projector: Projector) -> None:
    first, again = (Eye(projector, 1).see(5).parts[0] for _ in range(2))
    assert isinstance(first, ImageRows)
    assert isinstance(again, ImageRows)
    assert (first.values == again.values).all()
    with pytest.raises(ValueError, match="read-only"):
        first.values[0, 0] = 1.0


@pytest.mark.parametrize("is_known", [False, True])
def test_one_that_has_no_room_is_not_encoded(projector: Projector, is_known: bool) -> None:
    eye = Eye(projector, 2)
    if is_known:
        eye.see(1)
    with pytest.raises(TooManyRows) as refusal:
        eye.see(1, n_room=15)
    assert refusal.value.n_tokens == 16
    assert (bytes([1]) in eye.vision._pictures) == is_known
