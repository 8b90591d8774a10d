"""What every route works with, and how a request comes by it. Opened and closed by the app."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api.fleet import Fleet
from api.images import Images
from api.outgoing import Outgoing
from api.profiles import Profiles
from api.schemas.dialect import DIALECTS, Dialect
from api.schemas.strict import to_json
from shared.bus import Bus
from shared.settings import ApiSettings
from shared.store import Store

STOPPING = "The server is shutting down"

LEFT = "left"
"""Where in a request's state a route leaves an answer that takes long. It is given when the route is done: what routing
has of a request, about 10 kB, would be kept for all of a stream's hours."""

READING_AT_ONCE = 4
"""Pieces of uploads in one round of the event loop, each half a millisecond: people's answers have the rest."""


@dataclass(frozen=True, slots=True)
class Context:
    bus: Bus
    fleet: Fleet
    outgoing: Outgoing
    settings: ApiSettings
    profiles: Profiles
    store: Store
    """Bytes of files."""
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Runs what must outlive a request; the app waits for it before it closes the bus. It must not raise."""
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READING_AT_ONCE))
    """Taken by uploads for each piece that they take apart, and given back at the loop's next round."""
    started_at: float = field(default_factory=time.time)
    """Unix seconds."""

    @property
    def dialect(self) -> Dialect:
        """What this server's clients speak."""
        return DIALECTS[self.settings.compat]

    @property
    def images(self) -> Images:
        return Images(self.fleet, self.outgoing, self.settings)

    @property
    def max_body(self) -> int:
        """Bytes."""
        return self.settings.max_body


def context_of(request: Request) -> Context:
    context: Context = request.state.context
    return context


def path_of(request: Request) -> str:
    """As the table of routes has it: without what a server of several applications put before it."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))


def tenant_of(request: Request) -> str:
    tenant: str = request.state.tenant
    return tenant


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return written_response(to_json(value), status, headers)


def written_response(text: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The same of JSON that is written already."""
    return Response(text, status, headers, media_type="application/json; charset=utf-8")
