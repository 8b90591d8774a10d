"""What is said of an image before anything is decompressed."""

from __future__ import annotations

import base64
import io
import struct
import tracemalloc
import zlib

import pytest
from PIL import Image

from shared.errors import InvalidRequest
from shared.images import FORMATS, MAX_PIXELS, MAX_SIDE, Header, content_of, header_of


def picture(format: str, size: tuple[int, int] = (6, 4)) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", size, (200, 30, 30)).save(content, format)
    return content.getvalue()


def png_that_claims(width: int, height: int) -> bytes:
    """A header, and a chunk of pixels that has none."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@pytest.mark.parametrize("format", FORMATS)
def test_the_header_of_each_format_is_read(format: str) -> None:
    assert header_of(picture(format), "the image") == Header(format, 6, 4)


@pytest.mark.parametrize("format", ["TIFF", "PPM", "ICO"])
def test_a_format_that_is_not_on_the_list_is_refused(format: str) -> None:
    with pytest.raises(InvalidRequest, match=r"image 2 is no readable image: PNG, JPEG"):
        header_of(picture(format), "image 2")


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_ends_in_its_header_is_refused(format: str) -> None:
    for n_bytes in (1, 8, 15):
        with pytest.raises(InvalidRequest, match="no readable image"):
            header_of(picture(format)[:n_bytes], "the image")


@pytest.mark.parametrize(("width", "height"), [(30_000, 30_000), (2**31 - 1, 2**31 - 1), (MAX_SIDE + 1, 1)])
def test_a_bomb_is_refused_by_what_it_claims_and_costs_no_memory(width: int, height: int) -> None:
    content = png_that_claims(width, height)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=r"the (40000000|65535) "):
            header_of(content, "the image")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_the_largest_that_is_taken_is_taken() -> None:
    assert header_of(png_that_claims(MAX_PIXELS // 1000, 1000), "the image").width == MAX_PIXELS // 1000
    assert header_of(png_that_claims(1, MAX_SIDE), "the image").height == MAX_SIDE


def test_base64_is_read_with_its_line_breaks() -> None:
    content = picture("PNG")
    assert content_of(base64.encodebytes(content).decode(), "the image") == content


@pytest.mark.parametrize(
    "data", ["iVBO*w0KGgo=", "iVBORw0KGgo", "-_-_", "käse", "data:image/png;base64,aaaa", "\ud800"]
)
def test_what_is_not_base64_is_refused_by_name(data: str) -> None:
    with pytest.raises(InvalidRequest, match="image 1 is not valid base64") as refusal:
        content_of(data, "image 1", param="image_data")
    assert refusal.value.param == "image_data"


@pytest.mark.parametrize("data", ["", " \n"])
def test_nothing_is_no_image(data: str) -> None:
    with pytest.raises(InvalidRequest, match="the image is empty"):
        content_of(data, "the image")
