"""Images of a request on their way into its jobs: fetched where a client gave an address, looked at before anything is
queued, and put where their marks are.

Only headers are read here, off the event loop; the pixels are the worker's. Knows no field of any family.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass

from api.fleet import Fleet
from api.outgoing import Outgoing
from api.schemas.ask import Ask
from api.schemas.pictures import Picture
from api.schemas.strict import bad_field
from shared.errors import NotSupported
from shared.images import content_of, header_of
from shared.jobs import Generation, Image
from shared.settings import RequestSettings

MAX_FETCHED = 16
"""Images of one request that are somewhere else."""


@dataclass(frozen=True, slots=True)
class Images:
    """Puts them where they belong, as far as settings and workers allow."""

    fleet: Fleet
    outgoing: Outgoing
    settings: RequestSettings

    async def place(self, ask: Ask, model: str) -> Ask:
        """The same request with its images. Raises NotSupported when no worker of the model sees, and InvalidRequest
        for a picture that is none, that is too large, or that cannot be fetched."""
        pictures = ask.album.pictures
        if not pictures:
            return ask
        if not self.fleet.can_see(model):
            raise NotSupported(
                "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
                " (`--mmproj FILE`)"
            )
        if not isinstance(ask.request, Generation):
            return ask  # a template is rendered without a look at them
        files = await self._files(pictures)
        # Of one that several tags name, all places have the same name.
        looked_at = {picture.name: file for picture, file in zip(pictures, files, strict=True)}
        await asyncio.to_thread(_look, looked_at, self.settings.max_image)
        return ask.with_images([Image(data=file) for file in files])

    async def _files(self, pictures: Sequence[Picture]) -> list[str]:
        """The file of each picture in base64; all together are bounded like the body of a request."""
        max_body = self.settings.max_body
        room = max_body - sum(len(picture.data) for picture in pictures)
        if room < 0:
            raise bad_field(pictures[-1].name, f"all images together may have {max_body} bytes of base64")
        away = [picture for picture in pictures if picture.url]
        if len(away) > MAX_FETCHED:
            raise bad_field(away[-1].name, f"at most {MAX_FETCHED} images are fetched for a request")
        files = []
        for picture in pictures:
            file = picture.data
            if picture.url:  # one after the other: each may be as large as the others left room for
                file = await self._fetched(picture, room)
                room -= len(file)
            files.append(file)
        return files

    async def _fetched(self, picture: Picture, room: int) -> str:
        settings = self.settings
        if not settings.allow_image_urls:
            raise bad_field(picture.name, "this server fetches no images; send it as data:image/…;base64,…")
        max_bytes, timeout_s = min(settings.max_image, room * 3 // 4), settings.image_timeout_s
        content = await self.outgoing.fetch(
            picture.url, picture.name, max_bytes=max_bytes, timeout_s=timeout_s, accept="image/*"
        )
        return base64.b64encode(content).decode("ascii")


def _look(files: dict[str, str], max_image: int) -> None:
    """Raises InvalidRequest for a file in base64 that is no image, or too large a one."""
    for field, file in files.items():
        name = f"Field '{field}': the image"
        content = content_of(file, name, param=field)
        if len(content) > max_image:
            raise bad_field(field, f"the image is larger than {max_image / 1e6:g} MB")
        header_of(content, name, param=field)
