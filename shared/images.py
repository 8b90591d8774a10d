"""Images as clients send them: whether one is taken, judged by its text and the header of its file alone.

Nothing is decompressed here: a file of a few bytes may claim to be a picture of gigabytes. Knows nothing of models.
"""

from __future__ import annotations

import binascii
import io
import struct
from typing import NamedTuple

from PIL import Image, WebPImagePlugin

from shared.errors import InvalidRequest

__all__ = ["FORMATS", "MAX_PIXELS", "MAX_SIDE", "Header", "content_of", "header_of"]

FORMATS = ("PNG", "JPEG", WebPImagePlugin.WebPImageFile.format, "GIF", "BMP")
"""What is read. All other formats that Pillow knows stay shut: each is code that strangers would reach."""
MAX_PIXELS = 40_000_000
"""Of one image: a page scanned at 600 dpi has 35 million, a phone's picture 12 to 24. Each costs a worker some 14 bytes
while it is read, and models see no more than some millions."""

MAX_SIDE = 65_535
"""Of its width and of its height: as far as a JPEG goes."""


class Header(NamedTuple):
    """What the file says of itself."""

    format: str
    width: int
    height: int


def content_of(data: str, name: str, *, param: str | None = None) -> bytes:
    """The bytes of a file in base64, of which nothing is overlooked; white space is. InvalidRequest, about the image of
    that name, for what is not base64 or has nothing in it."""
    try:
        content = binascii.a2b_base64("".join(data.split()), strict_mode=True)
    except ValueError:
        raise InvalidRequest(f"{name} is not valid base64", param=param) from None
    if not content:
        raise InvalidRequest(f"{name} is empty", param=param)
    return content


def header_of(content: bytes, name: str, *, param: str | None = None) -> Header:
    """What a file's header says. InvalidRequest when it is no image of FORMATS, or larger than is taken."""
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            header = Header(str(image.format), image.width, image.height)
    except Image.DecompressionBombError:
        raise InvalidRequest(f"{name} has more than the {MAX_PIXELS} pixels that are taken", param=param) from None
    except (OSError, ValueError, SyntaxError, EOFError, struct.error):
        raise InvalidRequest(f"{name} is no readable image: {', '.join(FORMATS)} are taken", param=param) from None
    if max(header.width, header.height) > MAX_SIDE:
        raise InvalidRequest(
            f"{name} has {header.width} x {header.height} pixels, more than the {MAX_SIDE} on a side that are taken",
            param=param,
        )
    if header.width * header.height > MAX_PIXELS:
        raise InvalidRequest(
            f"{name} has {header.width} x {header.height} pixels, more than the {MAX_PIXELS} that are taken",
            param=param,
        )
    return header
