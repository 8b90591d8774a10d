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
from shared.images import FORMATS, MAX_PIXELS, MAX_SCANS, MAX_SIDE, MAX_STEPS, Header, content_of, header_of, opened


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


def jpeg_of(n_scans: int) -> bytes:
    """A progressive one, 64 x 64: all scans but the first say in a few bytes that they have nothing to say."""
    n_blocks = 64
    quantization = b"\xff\xdb" + struct.pack(">HB", 67, 0) + b"\1" * 64
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, 64, 64, 1) + b"\1\x11\0"
    codes = bytes([1] + [0] * 15)  # one, of one bit
    tables = b"".join(
        b"\xff\xc4" + struct.pack(">HB", 20, place) + codes + symbol for place, symbol in ((0, b"\0"), (16, b"\x60"))
    )
    first = b"\xff\xda" + struct.pack(">HB", 8, 1) + b"\1\0\0\0\0" + b"\0" * (n_blocks // 8)
    empty = b"\xff\xda" + struct.pack(">HB", 8, 1) + b"\1\0\1\x3f\0" + b"\x01"  # 64 blocks have no more
    return b"\xff\xd8" + quantization + frame + tables + first + empty * (n_scans - 1) + b"\xff\xd9"


@pytest.mark.parametrize("format", FORMATS)
def test_the_header_of_each_format_is_read(format: str) -> None:
    assert header_of(picture(format), "the image") == Header(format, 6, 4)


@pytest.mark.parametrize("format", ["TIFF", "PPM", "ICO"])
def test_a_format_that_is_not_on_the_list_is_refused(format: str) -> None:
    with pytest.raises(InvalidRequest, match=r"image 2 cannot be read as an image: PNG, JPEG"):
        header_of(picture(format), "image 2")


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_ends_in_its_header_is_refused(format: str) -> None:
    for n_bytes in (1, 8, 15):
        with pytest.raises(InvalidRequest, match="cannot be read as an image"):
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


def test_a_jpeg_of_endless_scans_is_refused_before_each_goes_over_all_pixels() -> None:
    content = jpeg_of(MAX_SCANS)
    assert header_of(content, "the image") == Header("JPEG", 64, 64)
    with opened(content) as image:
        image.load()
    with pytest.raises(InvalidRequest, match="cannot be read as an image"):
        header_of(jpeg_of(MAX_SCANS + 1), "the image")


def test_what_only_looks_like_scans_is_none() -> None:
    film = b"\xff\xda" * (MAX_SCANS + 1)
    jpeg = picture("JPEG")
    note = b"\xff\xee" + struct.pack(">H", 2 + len(film)) + film
    for content in (picture("BMP") + film, jpeg + film, jpeg[:2] + note + jpeg[2:]):
        assert header_of(content, "the image")[1:] == (6, 4)


def test_a_jpeg_of_countless_parts_between_its_scans_is_refused() -> None:
    jpeg = jpeg_of(2)
    at = jpeg.rindex(b"\xff\xda")
    with pytest.raises(InvalidRequest, match="cannot be read as an image"):
        header_of(jpeg[:at] + b"\xff\xfe\0\2" * MAX_STEPS + jpeg[at:], "the image")


def test_a_file_of_countless_tiny_parts_is_not_read_to_its_end() -> None:
    png, jpeg, gif = picture("PNG"), picture("JPEG"), picture("GIF")
    at = gif.index(b",")
    crowded = (
        png[:33] + _chunk(b"prVt", b"") * MAX_STEPS + png[33:],
        jpeg[:2] + b"\xff\xee\0\2" * MAX_STEPS + jpeg[2:],
        gif[:at] + b"\x21\xfe\0" * MAX_STEPS + gif[at:],
    )
    for content in crowded:
        with pytest.raises(InvalidRequest, match="cannot be read as an image"):
            header_of(content, "the image")


def test_a_file_of_many_parts_is_read() -> None:
    png = picture("PNG")
    assert header_of(png[:33] + _chunk(b"prVt", b"") * 10_000 + png[33:], "the image") == Header("PNG", 6, 4)
