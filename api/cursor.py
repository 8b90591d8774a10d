"""From where on a reader wants events. Knows nothing of what they tell."""

from __future__ import annotations

from starlette.requests import Request

from api.access import header_of, query_of
from api.schemas.jobs import EventsFields, event_number
from api.schemas.strict import read


def after_of(request: Request) -> int:
    """The event after which to go on. The header is what a reconnecting reader updates, so it comes first. Raises
    InvalidRequest."""
    fields = read(EventsFields, query_of(request))
    header = header_of(request, "Last-Event-ID")
    return fields.starting_after if header is None else event_number("Last-Event-ID", header)
