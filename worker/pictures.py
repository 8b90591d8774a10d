"""The images of one request: their files are opened here, and become pictures of the model one after the other.

What is done to the pixels is what llama.cpp does: the first frame, eight bits a colour, the orientation that a camera
noted left alone. Only what is transparent differs: it is laid on white, where llama.cpp shows what lies hidden there.
Knows nothing of prompts.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image

from shared.errors import Cancelled, InvalidRequest, PromptTooLong
from shared.images import content_of, header_of, opened
from shared.jobs import Lane, Media
from worker.engine import Picture, Pixels, TooManyRows, Vision

BACKGROUND = (255, 255, 255)
MAX_BYTES = 512 * 2**20
"""Of the rows of one request: a hundred bytes of a file may become ten megabytes of them."""


class Pictures:
    """Of one request: `take` gives them in order."""

    def __init__(
        self,
        media: Media,
        vision: Vision,
        n_ctx: int,
        lane: Lane = Lane.INTERACTIVE,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_wanted` says whether anybody still waits for the request. Reads all headers: InvalidRequest."""
        self.mark = media.mark
        self._vision = vision
        self._n_ctx = n_ctx
        self._is_bulk = lane is Lane.BULK
        self._is_wanted = is_wanted
        self._contents: list[bytes] = []
        for number, image in enumerate(media.images, 1):
            content = content_of(image.data, _name(number))
            header_of(content, _name(number))
            self._contents.append(content)
        self._n_taken = 0
        self._seen: set[bytes] = set()
        """By their contents."""
        self._n_bytes = 0
        """Of the rows of those."""
        self.took_ms = 0.0
        """Reading and encoding them, and waiting until others were encoded."""

    @property
    def n_left(self) -> int:
        return len(self._contents) - self._n_taken

    def take(self, n_before: int) -> Picture:
        """The next one, in a prompt that has so many tokens already. Raises PromptTooLong; InvalidRequest when its file
        is damaged; Cancelled when nobody waits for it any more."""
        if not self._is_wanted():
            raise Cancelled("nobody waits for these images any more")
        content = self._contents[self._n_taken]
        self._n_taken += 1
        name = _name(self._n_taken)
        digest, began = hashlib.sha256(content).digest(), time.monotonic()
        try:
            picture = self._vision.picture(
                digest, partial(pixels_of, content, name), self._n_ctx - n_before, name, is_bulk=self._is_bulk
            )
        except TooManyRows as error:
            n_tokens = n_before + error.n_tokens
            raise PromptTooLong(
                f"the request has at least {n_tokens} prompt tokens with its images"
                f" and exceeds the available context size of {self._n_ctx}",
                n_prompt_tokens=n_tokens,
                n_ctx=self._n_ctx,
            ) from None
        finally:
            self.took_ms += (time.monotonic() - began) * 1e3
        self._n_bytes += 0 if digest in self._seen else picture.n_bytes
        self._seen.add(digest)
        if self._n_bytes > MAX_BYTES:
            raise InvalidRequest(f"the images of the request take more than the {MAX_BYTES >> 20} MiB kept for them")
        return picture


def pixels_of(content: bytes, name: str) -> Pixels:
    """The picture in a file whose header was found good. InvalidRequest when it is damaged or ends too early. Takes
    some 14 bytes a pixel while it runs."""
    try:
        with opened(content) as image:
            image.load()
            return np.asarray(_flat(image), dtype=np.uint8)
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error, Image.DecompressionBombError):
        raise InvalidRequest(f"{name} is damaged: it cannot be read to its end") from None


def _flat(image: Image.Image) -> Image.Image:
    """Red, green and blue in eight bits each."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if not image.has_transparency_data:
        return image.convert("RGB")
    transparent = image.convert("RGBA")
    flat = Image.new("RGB", image.size, BACKGROUND)
    flat.paste(transparent, mask=transparent)
    return flat


def _name(number: int) -> str:
    return f"image {number}"
