"""What a client asked, whatever family it speaks, and how that family wants to be answered. Knows no HTTP.

A family's file turns client JSON into an `Ask`; the relay makes jobs of it and tells its `Shape` what they say. An
array of prompts is one job for who does not wait; for who does it is split into several, which spread over the workers:
`place` is a job's place among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

from api.framing import Framing
from api.schemas.pictures import Album
from api.schemas.webhook import WebhookFields
from shared.events import Event, Finished
from shared.jobs import Completion, Generation, Image, Lane, Media, Request


class Heard(NamedTuple):
    """One thing that one of the jobs said; `number` is its event id, None for what is not kept in a log."""

    place: int
    number: int | None
    event: Event


class Origin(NamedTuple):
    """What an answer tells of the jobs behind it, the same however often it is rendered."""

    job_id: str
    """Of the first job."""
    model: str
    created: int
    """Unix seconds."""


class Shape(Protocol):
    """One answer of one family. Made per answer, it may remember what was said so far."""

    @property
    def framing(self) -> Framing:
        """How its stream goes over the wire."""

    def say(self, heard: Heard) -> bytes:
        """The stream's events for what was heard, or nothing. A synchronous answer hears of no failure here."""

    def end(self) -> bytes:
        """What follows when every job has finished."""

    def failed(self, error: Exception) -> bytes:
        """The last event of a stream that cannot go on."""

    def body(self, endings: Sequence[Finished]) -> Any:
        """The whole answer as JSON values, from the successful endings of all jobs in their order."""


@dataclass(frozen=True, slots=True)
class Ask:
    request: Request
    shape: Callable[[Origin], Shape]
    model: str | None = None
    lane: Lane | None = None
    """None when the client does not say."""
    is_stream: bool = False
    keep_alive_s: float | None = None
    """Seconds of silence after which a stream says that it lives; None when the client does not say."""
    kept_fields: Mapping[str, Any] | None = None
    """The client's JSON, from which an answer is rendered that can be asked for again; None of any other."""
    is_background: bool = False
    """Whether it goes on when the client leaves. Such a one is kept."""
    webhook: WebhookFields | None = None
    """Who is told of the end of one in the background."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Of a kept one."""
    album: Album = field(default_factory=Album)
    """Pictures whose marks stand in the request, which has no media before `with_images`."""

    def with_images(self, images: Sequence[Image]) -> Ask:
        """The same with an image for each of its pictures, in their order."""
        assert isinstance(self.request, Generation) and len(images) == len(self.album.pictures)
        media = Media(mark=self.album.mark, images=tuple(images))
        return replace(self, request=self.request.model_copy(update={"media": media}))

    def split(self) -> tuple[Request, ...]:
        """A request for each prompt, in their order."""
        match self.request:
            case Completion(prompts=prompts) if len(prompts) > 1:
                return tuple(_each(self.request))
        return (self.request,)


def _each(request: Completion) -> Iterator[Completion]:
    """A request for each prompt, with the images that stand in it."""
    media = request.media
    images = iter(media.images if media else ())
    for prompt in request.prompts:
        n_images = prompt.count(media.mark) if media and isinstance(prompt, str) else 0
        own = media.model_copy(update={"images": tuple(islice(images, n_images))}) if media and n_images else None
        yield request.model_copy(update={"prompts": (prompt,), "media": own})
