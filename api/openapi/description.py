"""What a route's function says of itself, for the document: what reads its body, what it answers, how far it reaches.

Kept beside the function; paths and methods stand in the table of routes alone. The types are those that read and those
of `answers`: nothing here is a schema.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

Endpoint = Callable[[Request], Awaitable[ASGIApp]]
Described = TypeVar("Described", bound=Endpoint)


class Reach(Enum):
    """How far a request goes before it is answered, and so what can go wrong with it. Values: statuses of errors."""

    PROCESS = ()
    """No further than this process."""
    FLEET = (503,)
    """To the queue, or to what is known of the workers."""
    JOB = (400, 404, 429, 499, 500, 501, 503, 504)
    """To a worker and back."""


class Pieces(NamedTuple):
    """An answer in pieces."""

    media_type: str
    piece: Any
    """The type of each event's data, or of each line."""

    @classmethod
    def sse(cls, piece: Any) -> Pieces:
        return cls("text/event-stream", piece)

    @classmethod
    def ndjson(cls, piece: Any) -> Pieces:
        return cls("application/x-ndjson", piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Stands above its function as a decorator."""

    summary: str = field(kw_only=False)
    """One line, for lists of all paths."""
    gives: Any = None
    """The type of a 200's JSON; None where it has none."""
    gives_text: tuple[str, ...] = ()
    """Where the answer is no JSON: its media types."""
    also: Mapping[int, Any] = field(default_factory=dict)
    """Types of JSON answers with another status; None is an answer without a body."""
    streams: tuple[Pieces, ...] = ()
    reads: Any = None
    """The type of the JSON body; None where none is read."""
    needs_body: bool = True
    form: Any = None
    """The type of what is read from a form, with the texts that such a thing has; None where none is read."""
    query: type[BaseModel] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those of the request that change something, each with what it means."""
    reach: Reach = Reach.PROCESS
    fails: tuple[int, ...] = ()
    """Statuses of errors beside those of its reach, its body and its key."""
    tells_job: bool | None = None
    """Whether the answer has X-Job-Id. None: as its reach."""

    def __call__(self, endpoint: Described) -> Described:
        _DESCRIPTIONS[endpoint] = self
        return endpoint


described = Description
"""What it is called where it decorates."""

_DESCRIPTIONS: dict[Endpoint, Description] = {}


class ByMethod:
    """One path, several methods. As routes of their own, a 405 would tell of the first one only."""

    def __init__(self, **endpoints: Endpoint) -> None:
        self.endpoints = endpoints

    async def answer(self, request: Request) -> ASGIApp:
        return await self.endpoints.get(request.method, self.endpoints["GET"])(request)


class Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    endpoint: Endpoint
    description: Description | None
    """None where the function has been left without one."""


def operations_of(route: Route) -> list[Operation]:
    """Those of a route. HEAD is left out: it is GET without a body."""
    owner = getattr(route.endpoint, "__self__", None)
    if isinstance(owner, ByMethod):
        endpoints = owner.endpoints
    else:
        endpoints = dict.fromkeys(sorted((route.methods or set()) - {"HEAD"}), route.endpoint)
    return [
        Operation(method, route.path_format, endpoint, _DESCRIPTIONS.get(endpoint))
        for method, endpoint in endpoints.items()
    ]
