"""Images as clients send them: whether one is taken, judged by its text and the header of its file alone.

Nothing is decompressed here: a file of a few bytes may claim to be a picture of gigabytes. Knows nothing of models.
"""

from __future__ import annotations

import binascii
import io
import re
import struct
from typing import NamedTuple

from PIL import Image, WebPImagePlugin

from shared.errors import InvalidRequest

__all__ = ["FORMATS", "MAX_PIXELS", "MAX_SCANS", "MAX_SIDE", "MAX_STEPS", "Header", "content_of", "header_of", "opened"]

FORMATS = ("PNG", "JPEG", WebPImagePlugin.WebPImageFile.format, "GIF", "BMP")
"""What is read. All other formats that Pillow knows stay shut: each is code that strangers would reach."""
MAX_PIXELS = 40_000_000
"""Of one image: a page scanned at 600 dpi has 35 million, a phone's picture 12 to 24. Each costs a worker some 14 bytes
while it is read, and models see no more than some millions."""

MAX_SIDE = 65_535
"""Of its width and of its height: as far as a JPEG goes."""

MAX_SCANS = 100
"""Of a JPEG; a progressive one has some ten. Each goes over all pixels, though it may have hardly a byte: a file of ten
megabytes could take an hour."""
_JPEG = b"\xff\xd8"
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
_SCAN, _END, _BARE = b"\xda", b"\xd9", (b"\x01", b"\xd8")

MAX_STEPS = 200_000
"""In which a file is read. One in kilobytes a step has some ten thousand; one of many tiny parts, each of which is a
few bytes to send, would be gone through in Python for as long as there are parts."""


class Header(NamedTuple):
    """What the file says of itself."""

    format: str
    width: int
    height: int


class _Stepwise(io.BytesIO):
    """A file that cannot be read in more than MAX_STEPS."""

    n_steps = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.n_steps += 1
        if self.n_steps > MAX_STEPS:
            raise OSError("too many steps")
        return super().read(size)


def opened(content: bytes) -> Image.Image:
    """A file of FORMATS, of which no more was read than its header. OSError when it has too many scans, or now or later
    too many parts; and whatever Pillow raises."""
    if content.startswith(_JPEG):
        _check_scans(content)
    return Image.open(_Stepwise(content), formats=FORMATS)


def _check_scans(content: bytes) -> None:
    """OSError when a JPEG has too many. Goes from marker to marker as its decoder does; what is behind its end counts
    for nothing: phones put films there."""
    n_scans = at = 0
    for _ in range(MAX_STEPS):
        marker = _MARKER.search(content, at)
        if marker is None or marker[1] == _END:
            return
        n_scans += marker[1] == _SCAN
        if n_scans > MAX_SCANS:
            break
        at = marker.end()
        if marker[1] not in _BARE:
            at += int.from_bytes(content[at : at + 2], "big")
    raise OSError("too many scans or parts")


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
        with opened(content) as image:
            header = Header(str(image.format), image.width, image.height)
    except Image.DecompressionBombError:
        raise InvalidRequest(f"{name} has more than the {MAX_PIXELS} pixels that are taken", param=param) from None
    except (OSError, ValueError, SyntaxError, EOFError, struct.error):
        raise InvalidRequest(
            f"{name} cannot be read as an image: {', '.join(FORMATS)} are taken", param=param
        ) from None
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
