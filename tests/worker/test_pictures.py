"""Files of images become pixels, or a refusal that names the image."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shared.errors import Cancelled, EngineFailed, InvalidRequest, PromptTooLong
from shared.jobs import Image as File
from shared.jobs import Media
from tests.models import write_byte_model, write_projector
from tests.worker.engine.looking import projector_of
from worker.engine import Model, Pixels, Vision
from worker.engine.llama import Projector
from worker.pictures import Pictures, pixels_of

RED, WHITE = (200, 30, 40), (255, 255, 255)


def saved(image: Image.Image, format: str = "PNG", **more: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, format, **more)
    return content.getvalue()


def plain(color: tuple[int, ...], mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (6, 4), color)


@pytest.mark.parametrize(
    ("image", "format", "more"),
    [
        (plain(RED), "PNG", {}),
        (plain(RED), "BMP", {}),
        (plain(RED), "GIF", {}),
        (plain(RED), "WEBP", {"lossless": True}),
        (plain(RED), "JPEG", {"quality": 100, "subsampling": 0}),
        (plain(RED).quantize(4), "PNG", {}),
        (plain(RED), "GIF", {"save_all": True, "append_images": [plain(WHITE)]}),
        (plain(RED).convert("CMYK"), "JPEG", {"quality": 100, "subsampling": 0}),
    ],
    ids=["png", "bmp", "gif", "webp", "jpeg", "palette", "first frame", "cmyk"],
)
def test_an_image_of_any_format_is_red_green_and_blue(image: Image.Image, format: str, more: dict[str, Any]) -> None:
    pixels = pixels_of(saved(image, format, **more), "the image")
    assert (pixels.shape, pixels.dtype) == ((4, 6, 3), np.uint8)
    assert np.abs(pixels.astype(int) - RED).max() <= 4


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode: str) -> None:
    clear = plain((*RED, 0), "RGBA")
    image = clear.quantize(4) if mode == "P" else clear.convert(mode)
    assert (pixels_of(saved(image), "the image") == WHITE).all()


def test_what_is_half_transparent_is_half_white() -> None:
    pixels = pixels_of(saved(plain((0, 0, 0, 128), "RGBA")), "the image")
    assert (np.abs(pixels.astype(int) - 127) <= 1).all()


def test_sixteen_bits_a_pixel_keep_the_upper_eight() -> None:
    image = Image.fromarray(np.full((4, 6), 0x80FF, dtype=np.uint16))
    assert (pixels_of(saved(image), "the image") == 0x80).all()


def test_the_orientation_that_a_camera_noted_is_left_alone() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    assert pixels_of(saved(plain(RED), "JPEG", exif=exif), "the image").shape == (4, 6, 3)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "BMP"])
def test_a_file_that_ends_too_early_is_refused_by_name(format: str) -> None:
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    content = saved(noise, format)
    with pytest.raises(InvalidRequest, match=r"^image 3 is damaged"):
        pixels_of(content[: len(content) // 2], "image 3")


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vision]:
    folder = tmp_path_factory.mktemp("models")
    with (
        Model.load(write_byte_model(folder / "model.gguf")) as model,
        Projector.load(model, projector_of(write_projector(folder / "p.gguf"))) as projector,
    ):
        yield Vision(projector, n_ubatch=512)


def test_rows_that_are_not_numbers_never_reach_a_cache(tmp_path: Path) -> None:
    path = write_projector(tmp_path / "p.gguf")
    weights = bytearray(path.read_bytes())
    weights[-4:] = np.float32("nan").tobytes()  # of the last bias
    path.write_bytes(weights)
    with (
        Model.load(write_byte_model(tmp_path / "model.gguf")) as model,
        Projector.load(model, projector_of(path)) as projector,
        pytest.raises(EngineFailed, match="not numbers"),
    ):
        Pictures(media(saved(plain(RED))), Vision(projector, n_ubatch=512), n_ctx=100).take(0)


def test_who_leaves_waits_for_the_image_that_is_being_encoded_and_encodes_no_other(tmp_path: Path) -> None:
    with Model.load(write_byte_model(tmp_path / "model.gguf")) as model:
        vision = Vision(Projector.load(model, projector_of(write_projector(tmp_path / "p.gguf"))), n_ubatch=512)
        has_begun, may_go_on = threading.Event(), threading.Event()

        def read() -> Pixels:
            has_begun.set()
            assert may_go_on.wait(30)
            return pixels_of(saved(plain(RED)), "the image")

        with ThreadPoolExecutor() as threads:
            seen = threads.submit(vision.picture, b"one", read, 100, "the image")
            assert has_begun.wait(30)
            closing = threads.submit(vision.close)
            may_go_on.set()
            closing.result(30)
            assert seen.result(30).n_tokens == 16
        with pytest.raises(Cancelled):
            vision.picture(b"two", read, 100, "the image")


def media(*contents: bytes) -> Media:
    files = tuple(File(data=base64.b64encode(content).decode()) for content in contents)
    return Media(mark="a mark of ours", images=files)


def test_pictures_come_in_order_and_the_same_one_twice_is_the_same(vision: Vision) -> None:
    red, white = saved(plain(RED)), saved(plain(WHITE))
    pictures = Pictures(media(red, white, red), vision, n_ctx=100)
    first, second, third = (pictures.take(0) for _ in range(3))
    assert first is third
    assert first.parts[0].id != second.parts[0].id  # type: ignore[union-attr]
    assert pictures.n_left == 0


def test_all_headers_are_read_before_any_image_is(vision: Vision) -> None:
    with pytest.raises(InvalidRequest, match=r"^image 2 cannot be read as an image"):
        Pictures(media(saved(plain(RED)), b"rubbish"), vision, n_ctx=100)


def test_an_image_that_does_not_fit_is_refused_with_both_numbers(vision: Vision) -> None:
    pictures = Pictures(media(saved(plain(RED))), vision, n_ctx=100)
    with pytest.raises(PromptTooLong) as refusal:
        pictures.take(90)
    assert (refusal.value.n_prompt_tokens, refusal.value.n_ctx) == (106, 100)


def test_a_request_has_no_more_rows_than_memory_is_kept_for(vision: Vision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.pictures.MAX_BYTES", 2 * 16 * 64 * 4)
    red, white, blue = (saved(plain(color)) for color in (RED, WHITE, (0, 0, 255)))
    pictures = Pictures(media(red, white, red, blue), vision, n_ctx=100)
    for _ in range(3):
        pictures.take(0)
    with pytest.raises(InvalidRequest, match="images of the request take more than"):
        pictures.take(0)


def test_an_image_of_nobody_is_not_opened(vision: Vision) -> None:
    damaged = saved(plain(RED))[:-20]
    pictures = Pictures(media(damaged), vision, n_ctx=100, is_wanted=lambda: False)
    with pytest.raises(Cancelled):
        pictures.take(0)


def test_a_damaged_image_is_refused_where_it_is_taken(vision: Vision) -> None:
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    pictures = Pictures(media(saved(plain(RED)), saved(noise)[:2000]), vision, n_ctx=100)
    pictures.take(0)
    with pytest.raises(InvalidRequest, match=r"^image 2 is damaged"):
        pictures.take(0)
