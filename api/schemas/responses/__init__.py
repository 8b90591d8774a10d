"""OpenAI's responses: what makes one, how it looks, whole and as a stream that can be picked up anywhere.

`fields` reads a request, with `inputs` and `tools`; `output` makes `items` of a reply; `body` is the object, and
`shape` its stream.
"""

from __future__ import annotations

from typing import Any

from api.schemas.ask import Ask
from api.schemas.responses.fields import asked_of
from api.schemas.responses.shape import ResponseShape


def response(fields: dict[str, Any]) -> Ask:
    """The job of a `/v1/responses` body. Raises InvalidRequest or NotSupported."""
    asked = asked_of(fields)
    typed = asked.typed
    return Ask(
        request=asked.request,
        shape=lambda origin: ResponseShape(origin, asked),
        model=typed.model,
        lane=typed.lane,
        is_stream=typed.stream,
        keep_alive_s=typed.keep_alive_s,
        kept_fields={name: value for name, value in fields.items() if name != "webhook"} if typed.store else None,
        is_background=typed.background,
        webhook=typed.webhook,
        metadata=typed.metadata,
        album=asked.album,
    )
