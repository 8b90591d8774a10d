"""Makes rows of images, one image at a time, and keeps them for the next prompt with the same image.

Runs off the decode thread, in whatever thread asks; decodes of others go on meanwhile. Knows nothing of files of
images, of prompts or of jobs.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from shared.errors import Cancelled, EngineFailed, InvalidRequest
from worker.closing import Closing
from worker.engine.llama import Pixels, Projector, Slice, View
from worker.engine.vision.images import ImageRows, Picture
from worker.engine.vision.turnstile import Turnstile

CACHE_BYTES = 256 * 2**20
"""Of rows that are kept: an image of 576 rows for a model 4096 wide takes 9 MiB."""
MOST_NAMED = 65_536
"""Images whose ids are remembered, so that a cache which holds their rows is found again after the rows went."""


class TooManyRows(Exception):
    """The image takes more tokens than there is room for."""

    def __init__(self, n_tokens: int) -> None:
        super().__init__(n_tokens)
        self.n_tokens = n_tokens


class Vision(Closing):
    """Of one model and its projector. For any thread; one image is encoded at a time."""

    def __init__(self, projector: Projector, n_ubatch: int, *, n_bytes: int = CACHE_BYTES) -> None:
        """`n_ubatch`: rows that can be computed at once. The projector is closed here."""
        self._projector = projector
        self._n_ubatch = n_ubatch
        self._n_bytes_max = n_bytes
        self._turnstile = Turnstile()
        # Below: by whose turn it is.
        self._is_closed = False
        self._pictures: OrderedDict[bytes, Picture] = OrderedDict()
        self._n_bytes = 0
        self._ids: OrderedDict[tuple[bytes, int], int] = OrderedDict()
        self._unused_ids = itertools.count(-1, -1)  # 31 bits: a hundred images a second for eight months

    def close(self) -> None:
        """No image is encoded any more; one that is being encoded comes to its end first."""
        with self._turnstile.turn():
            self._is_closed = True
            self._projector.close()

    def picture(
        self, digest: bytes, read: Callable[[], Pixels], n_room: int, name: str, *, is_bulk: bool = False
    ) -> Picture:
        """The image whose content has this digest, as it stands in a prompt that has room for so many tokens.

        `read` gives its pixels, and is called only for an image that is not known. People's images go before those of
        bulk. Raises TooManyRows; InvalidRequest, about the image of that name, when the projector cannot take it;
        EngineFailed when that fails; Cancelled once this is closed.
        """
        with self._turnstile.turn(is_bulk=is_bulk):
            if self._is_closed:
                raise Cancelled("the worker is leaving")
            picture = self._pictures.get(digest)
            if picture is None:
                with self._projector.view(read()) as view:
                    if view is None or not view.has_tokens:
                        raise InvalidRequest(f"{name} cannot be taken by the model's projector")
                    self._check(view, n_room, name)
                    picture = Picture(tuple(self._part(digest, view, index) for index in range(len(view.parts))))
                self._keep(digest, picture)
            self._pictures.move_to_end(digest)
        if picture.n_tokens > n_room:
            raise TooManyRows(picture.n_tokens)
        return picture

    def _check(self, view: View, n_room: int, name: str) -> None:
        """What is known of an image before the work of encoding it."""
        sizes = [part.n_rows if isinstance(part, Slice) else len(part) for part in view.parts]
        if sum(sizes) > n_room:
            raise TooManyRows(sum(sizes))
        n_rows = max((part.n_rows for part in view.parts if isinstance(part, Slice)), default=0)
        if not self._projector.is_causal and n_rows > self._n_ubatch:
            raise InvalidRequest(
                f"{name} takes {n_rows} tokens, which this model must compute at once,"
                f" more than the {self._n_ubatch} of n_ubatch that this worker can"
            )

    def _part(self, digest: bytes, view: View, index: int) -> tuple[int, ...] | ImageRows:
        part = view.parts[index]
        if not isinstance(part, Slice):
            return part
        values = view.encode(index)
        if values is None:
            raise EngineFailed("the model's projector failed to encode an image")
        if not np.isfinite(values).all():  # in the cache they would spread to all that is computed there
            raise EngineFailed("the model's projector makes values of an image that are not numbers")
        values.flags.writeable = False
        return ImageRows(
            self._id(digest, index), values, part.n_positions, part.places, part.steps, self._projector.is_causal
        )

    def _id(self, digest: bytes, index: int) -> int:
        """The same for the same slice as long as it is remembered, and never again for another."""
        key = (digest, index)
        if key not in self._ids:
            self._ids[key] = next(self._unused_ids)
        self._ids.move_to_end(key)
        if len(self._ids) > MOST_NAMED:
            self._ids.popitem(last=False)
        return self._ids[key]

    def _keep(self, digest: bytes, picture: Picture) -> None:
        """With room made for it; one that is too large for all of it is kept alone until the next comes."""
        self._pictures[digest] = picture
        self._n_bytes += picture.n_bytes
        while self._n_bytes > self._n_bytes_max and len(self._pictures) > 1:
            _, gone = self._pictures.popitem(last=False)
            self._n_bytes -= gone.n_bytes
