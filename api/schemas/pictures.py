"""Where the images of a request stand in its texts: each place gets a mark, behind which the model sees the image.

Knows no pixel and fetches nothing: what the client gave of each is made into an image by `api.images`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from api.schemas.strict import ClientFields, bad_field, read

MEDIA_MARKER = "<__media__>"
"""llama.cpp's word for the place of an image, in a prompt that comes with its images and in one that is shown."""

MAX_PICTURES = 256
"""In one request: far above what fits a context."""

MAX_ID = 999_999_999
_TAG = re.compile(r"\[img-([0-9]{1,9})\]", re.ASCII)


class Picture(NamedTuple):
    """What a client gave of the image of one place: its file in base64, or else the address where it is."""

    name: str
    """The field, for errors."""
    data: str = ""
    url: str = ""


class Album:
    """The pictures of one request in the order of its texts. Filled while the request is read."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(16)
        """Stands in the texts for each of them. Letters and digits only: no template makes anything else of them."""
        self.pictures: list[Picture] = []

    def put(self, picture: Picture) -> str:
        """The text that stands for it. Raises InvalidRequest when there are too many."""
        if len(self.pictures) == MAX_PICTURES:
            raise bad_field(picture.name, f"at most {MAX_PICTURES} images are taken")
        self.pictures.append(picture)
        return self.mark


class TaggedFields(ClientFields):
    """One of `image_data`, the form of llama.cpp's first server and of ollama's runner: a file and its number."""

    data: str
    id: Annotated[int, Field(ge=0, le=MAX_ID)]


class ImageDataFields(ClientFields):
    image_data: list[TaggedFields] = []


class PromptPictures:
    """Those of a completion: its prompts name them by tags, `[img-12]`, or bring their own."""

    def __init__(self, fields: dict[str, Any]) -> None:
        """Raises InvalidRequest when `image_data` is not what it must be."""
        self.album = Album()
        self._by_id: dict[int, Picture] = {}
        for place, tagged in enumerate(read(ImageDataFields, fields).image_data):
            if tagged.id in self._by_id:
                raise bad_field(f"image_data[{place}].id", f"{tagged.id} is given twice")
            self._by_id[tagged.id] = Picture(f"image_data[{place}].data", data=tagged.data)

    def tagged(self, name: str, text: str) -> str:
        """The prompt `name` with marks for its tags, which are plain text to a request without `image_data`. Raises
        InvalidRequest for a tag of no image; an image without a tag is left out, as both ancestors do."""
        if not self._by_id:
            return text

        def mark(tag: re.Match[str]) -> str:
            picture = self._by_id.get(int(tag[1]))
            if picture is None:
                raise bad_field(name, f"image_data has no id {tag[1]} (invalid image index: {tag[1]})")
            return self.album.put(picture)

        return _TAG.sub(mark, text)

    def marked(self, name: str, text: str, files: Any) -> str:
        """The prompt `name` that comes with its images, in base64: one for each of llama.cpp's markers in it. Raises
        InvalidRequest."""
        field = f"{name}.multimodal_data"
        if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
            raise bad_field(field, "must be a list of strings")
        pieces = text.split(MEDIA_MARKER)
        if len(pieces) - 1 != len(files):
            raise bad_field(
                field,
                f"has {len(files)} images, and prompt_string has {len(pieces) - 1} places for them: each needs one"
                f" {MEDIA_MARKER}",
            )
        marks = [self.album.put(Picture(f"{field}[{place}]", data=file)) for place, file in enumerate(files)]
        return "".join(text for pair in zip(pieces, [*marks, ""], strict=True) for text in pair)


Address = Annotated[str, Field(pattern=r"^(data:image/|https?:)")]
"""Of an image: base64 in the address itself, or where it is to be fetched."""


def picture_of(name: str, part: dict[str, Any]) -> Picture:
    """The picture of a chat's part `name`, of type `image_url` or `input_image`. Raises InvalidRequest."""
    given = part.get("image_url")
    address = given.get("url") if isinstance(given, dict) else given
    field = f"{name}.image_url.url" if isinstance(given, dict) else f"{name}.image_url"
    if not isinstance(address, str) or not address:
        raise bad_field(field, "must be the address of an image")
    scheme, colon, _ = address[:32].partition(":")
    match scheme.lower() if colon else "":
        case "data":
            head, comma, data = address.partition(",")
            if not comma or not re.fullmatch(r"data:image/[^;,]+(;[^,]*)?;base64", head, re.IGNORECASE):
                raise bad_field(field, "must begin with 'data:image/…;base64,'")
            return Picture(field, data=data)
        case "http" | "https":
            return Picture(field, url=address)
    raise bad_field(field, "must be an address of data:, http: or https:")


def without_files(body: Any, album: Album) -> Any:
    """A client's JSON with digests in place of the pictures' files: still another one for other pictures, and all that
    it takes to render its answer. The files are in the job, which is dropped when it has ended; this is kept."""
    digests = {
        picture.data: f"sha256:{hashlib.sha256(picture.data.encode()).hexdigest()}"
        for picture in album.pictures
        if picture.data
    }

    def slim(value: Any) -> Any:
        match value:
            case dict():
                return {name: slim(item) for name, item in value.items()}
            case list():
                return [slim(item) for item in value]
            case str() if value[:5].lower() == "data:":
                head, comma, data = value.partition(",")
                return f"{head}{comma}{digests.get(data, data)}"
            case str():
                return digests.get(value, value)
        return value

    return slim(body) if digests else body
