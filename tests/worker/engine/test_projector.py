"""Files of projectors that are none, or none for the model, and what an image becomes before it is encoded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

from tests.models import write_projector
from tests.worker.engine.looking import picture, projector_of
from worker.engine.llama import LoadFailed, Model, Projector, Slice

SIZES = (64, 64, 64, 32, 96, 32)


@pytest.fixture(scope="module")
def model(byte_model: Path) -> Iterator[Model]:
    with Model.load(byte_model) as loaded:
        yield loaded


def refusal(model: Model, path: Path) -> str:
    with pytest.raises(LoadFailed) as raised:
        Projector.load(model, projector_of(path))
    return str(raised.value)


def test_a_projector_for_another_width_is_refused_with_both_numbers(model: Model, tmp_path: Path) -> None:
    path = write_projector(tmp_path / "wide.gguf", n_out=96)
    assert refusal(model, path) == (
        f"--mmproj: {path} is no projector for this model: it makes rows of 96 values, and the model takes 64"
    )


def test_a_model_is_no_projector(model: Model, byte_model: Path) -> None:
    assert refusal(model, byte_model).endswith("is no projector for this model: it has no encoder of images")


def test_an_unknown_kind_is_named(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "strange.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("periscope")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert refusal(model, path).endswith("unknown projector type: periscope")


def test_a_projector_that_wants_tokens_which_the_model_has_not_is_refused(model: Model, tmp_path: Path) -> None:
    path = write_projector(tmp_path / "p.gguf", "idefics3")
    assert refusal(model, path).endswith("wants tokens around an image that this model does not have")


def test_a_large_picture_may_become_several_slices(model: Model, tmp_path: Path) -> None:
    path = write_projector(tmp_path / "p.gguf", sizes=SIZES)
    with Projector.load(model, projector_of(path)) as projector:
        for width, height, n_slices in ((20, 20, 1), (64, 64, 5), (100, 30, 4)):
            with projector.view(picture(1, width, height)) as view:
                assert view is not None
                assert [type(part) for part in view.parts] == [Slice] * n_slices


@pytest.mark.parametrize("n_kept", [200, 60_000])
def test_a_file_that_ends_too_early_is_refused(model: Model, tmp_path: Path, n_kept: int) -> None:
    path = write_projector(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:n_kept])
    assert refusal(model, path).startswith(f"--mmproj: {path} is no projector for this model: ")


def test_what_is_no_gguf_file_or_not_there_is_refused(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("hello")
    assert refusal(model, path) == f"--mmproj: {path} is not a GGUF file"
    assert refusal(model, tmp_path / "none").endswith("no such file or directory")


def test_rows_are_counted_before_they_are_made(model: Model, tmp_path: Path) -> None:
    path = write_projector(tmp_path / "p.gguf", "gemma3")
    with Projector.load(model, projector_of(path)) as projector, projector.view(picture(1)) as view:
        assert view is not None
        before, rows, behind = view.parts
        assert (before, behind) == (tuple(b"<start_of_image>"), tuple(b"<end_of_image>"))
        assert rows == Slice(4, 4, None, None)
        values = view.encode(1)
        assert values is not None and values.shape == (4, model.facts.n_embd)


@pytest.mark.parametrize("kind", ["mlp", "gemma3", "qwen2vl_merger"])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 2000), (2000, 1), (900, 600)])
def test_no_shape_of_an_image_ends_the_process(
    model: Model, tmp_path: Path, kind: str, width: int, height: int
) -> None:
    path = write_projector(tmp_path / "p.gguf", kind)  # type: ignore[arg-type]
    with (
        Projector.load(model, projector_of(path, n_max_tokens=64)) as projector,
        projector.view(picture(1, width, height)) as view,
    ):
        assert view is None or any(isinstance(part, Slice) for part in view.parts)
