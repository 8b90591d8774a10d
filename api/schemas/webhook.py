"""Where somebody is told, of what, and what signs it: fields of endpoints, and of what a job or batch brings itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, StringConstraints

from api.schemas.strict import OwnFields
from shared.webhooks import EVENT_TYPES, key_of

MAX_URL = 2048
MAX_LISTED = 100
"""Event types of one request, however often each is named."""


def _known(names: list[str]) -> list[str]:
    if unknown := [name for name in names if name not in EVENT_TYPES]:
        shown = ", ".join(repr(name[:64]) for name in unknown[:10])
        raise ValueError(f"there are no events {shown}; there are {', '.join(EVENT_TYPES)}")
    return list(dict.fromkeys(names))


def _secret(secret: SecretStr) -> SecretStr:
    key_of(secret)
    return secret


_ONE_OF_ALL = {"items": {"type": "string", "enum": list(EVENT_TYPES)}}

Url = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL)]
EventTypes = Annotated[
    list[str], Field(min_length=1, max_length=MAX_LISTED, json_schema_extra=_ONE_OF_ALL), AfterValidator(_known)
]
SigningSecret = Annotated[SecretStr, AfterValidator(_secret)]


class WebhookFields(OwnFields):
    """Who else is told of the end of a job or batch."""

    url: Url
    events: Annotated[
        list[str], Field(max_length=MAX_LISTED, json_schema_extra=_ONE_OF_ALL), AfterValidator(_known)
    ] = []
    """Those that it may end with; all of them when there are none."""
    secret: SigningSecret | None = None
    """`whsec_` and the base64 of 24 to 64 bytes; without one, the server's signs, if it has one."""
