"""Who may come in, and what every answer carries: keys and tenants, the prefix of all paths, CORS, request ids.

One ASGI layer around all routes, so that no route can be forgotten: a path is closed unless it is in `OPEN`. Knows no
job and no model. It is also the last border: what nobody caught becomes a JSON error here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.context import LEFT, STOPPING
from api.cors import PREFLIGHT, Cors
from api.keys import ANYONE, Keys
from api.problems import new_request_id, response_to
from api.schemas.strict import bad_field
from shared.errors import NotReady, SlotstreamError

log = structlog.get_logger(__name__)

OPEN = frozenset({"/health", "/v1/health", "/ready", "/live"})
"""Paths that need no key, compared as the routes compare them: what is not exactly one of them is closed."""

MAX_IDEMPOTENCY_KEY = 255

REPEATS = "X-Stainless-Retry-Count"
"""A header: how often it was sent before."""

_SENT_BEFORE = re.compile(r"0*[1-9][0-9]*", re.ASCII)
_REQUEST_ID = re.compile(r"[!-~]{1,128}", re.ASCII)


class Access:
    """The layer itself. Leaves the tenant in the request's state, and the path without the prefix that all have."""

    def __init__(self, app: ASGIApp, keys: Keys, cors: Cors, prefix: str) -> None:
        self._app = app
        self._keys = keys
        self._cors = cors
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(Headers(scope=scope), self._cors, send)
        if scope["method"] == "OPTIONS":
            await Response(headers=PREFLIGHT)(scope, receive, answer.send)
            return
        try:
            self._admit(scope)
            await self._app(scope, receive, answer.send)
            if (left := scope["state"].pop(LEFT, None)) is not None:
                await left(scope, receive, answer.send)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            # Only a server that stops cancels us, and all it waits for is our end.
            if not answer.has_started:
                await response_to(NotReady(STOPPING), scope)(scope, receive, answer.send)
        except Exception as error:
            if not isinstance(error, SlotstreamError | HTTPException):
                log.exception("a request failed", request_id=answer.request_id, path=scope["path"])
            if answer.has_started:
                raise  # the server cuts the connection, so that nobody takes the answer for whole
            await response_to(error, scope)(scope, receive, answer.send)

    def _admit(self, scope: Scope) -> None:
        """Leaves in the scope whose request it is. Raises Unauthenticated, and HTTP 404 for what lacks the prefix."""
        is_below = scope["path"].startswith(f"{self._prefix}/")
        if is_below:
            scope["path"] = scope["path"].removeprefix(self._prefix)  # first: errors too go by the path that is left
        is_open = is_below and scope["path"] in OPEN
        tenant = ANYONE if is_open else self._keys.tenant_of(Headers(scope=scope))
        if not is_below:
            raise HTTPException(404)
        scope.setdefault("state", {})["tenant"] = tenant


class _Answer:
    """One response on its way out: gets the headers that all responses have."""

    def __init__(self, headers: Headers, cors: Cors, send: Send) -> None:
        given = headers.get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else new_request_id()
        self.has_started = False
        self._origin = headers.get("origin", "")
        self._cors = cors
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self.request_id
            self._cors.mark(headers, self._origin)
        await self._send(message)


def query_of(request: Request, names: Collection[str] | None = None) -> dict[str, str]:
    """The parameters behind the path; with `names`, only those of them. Raises InvalidRequest when one is given twice:
    which would count?"""
    given = [item for item in request.query_params.multi_items() if names is None or item[0] in names]
    names = [name for name, _ in given]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise bad_field(twice, "is given twice")
    return dict(given)


def header_of(request: Request, name: str) -> str | None:
    """A header that may be given once. Raises InvalidRequest."""
    given = request.headers.getlist(name)
    if len(given) > 1:
        raise bad_field(name, "is given twice")
    return given[0] if given else None


def idempotency_key_of(request: Request) -> str | None:
    """What a client says twice the same with. Raises InvalidRequest."""
    key = header_of(request, "Idempotency-Key")
    if key is None:
        return None
    if not (0 < len(key) <= MAX_IDEMPOTENCY_KEY and key.isascii() and key.isprintable()):
        raise bad_field("Idempotency-Key", f"must be 1 to {MAX_IDEMPOTENCY_KEY} printable ASCII characters")
    return key


def is_sent_again(request: Request) -> bool:
    """Whether the client says, as OpenAI's does, that it has sent this before, after no answer or a bad one. Raises
    InvalidRequest."""
    return bool(_SENT_BEFORE.fullmatch(header_of(request, REPEATS) or ""))
