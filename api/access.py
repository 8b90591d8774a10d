"""Who may come in, and what every answer carries: keys and tenants, CORS, request ids, body sizes.

One ASGI layer around all routes, so that no route can be forgotten: a path is closed unless it is in `OPEN`. Knows no
job and no model. It is also the last border: what nobody caught becomes a JSON error here.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Sequence
from typing import Any

import structlog
from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.context import STOPPING
from api.problems import response_to
from api.schemas.strict import bad_field, parse_list, parse_object
from shared.errors import NotReady, Unauthenticated

log = structlog.get_logger(__name__)

OPEN = frozenset({"/health", "/v1/health", "/ready", "/live"})
"""Paths that need no key, compared as they came: no other spelling of them is open."""

ANYONE = "default"
"""The one tenant of a server without keys."""

MAX_IDEMPOTENCY_KEY = 255

_REQUEST_ID = re.compile(r"[!-~]{1,128}", re.ASCII)

_PREFLIGHT = {
    "Access-Control-Allow-Credentials": "true",
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "*",
}


class Keys:
    """The keys that clients may use, each with the name of its tenant, from which it cannot be told."""

    def __init__(self, keys: Sequence[SecretStr]) -> None:
        secrets_ = [key.get_secret_value().encode() for key in keys]
        self._tenants = [(key, f"key-{hashlib.sha256(key).hexdigest()[:16]}") for key in secrets_]

    def tenant_of(self, headers: Headers) -> str:
        """The tenant of a request. Raises Unauthenticated without exactly one offered key that fits.

        Every key is compared, in constant time, on bytes: neither the time nor an odd character tells anything.
        """
        if not self._tenants:
            return ANYONE
        offered = _offered(headers)
        found = None
        for key, tenant in self._tenants:
            if hmac.compare_digest(key, offered) and found is None:
                found = tenant
        if found is None:
            raise Unauthenticated("Invalid API Key")
        return found


def _offered(headers: Headers) -> bytes:
    authorizations = headers.getlist("authorization")
    if not authorizations:
        keys = headers.getlist("x-api-key")
        return keys[0].encode("latin-1") if len(keys) == 1 else b""
    if len(authorizations) > 1:
        return b""
    scheme, _, key = authorizations[0].partition(" ")
    return key.encode("latin-1") if scheme.lower() == "bearer" else b""


class Access:
    """The layer itself. Leaves the tenant in the request's state."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(Headers(scope=scope), send)
        if scope["method"] == "OPTIONS":
            await Response(headers=_PREFLIGHT)(scope, receive, answer.send)
            return
        try:
            scope.setdefault("state", {})["tenant"] = self._tenant(scope)
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            # Only a server that stops cancels us, and all it waits for is our end.
            if not answer.has_started:
                await response_to(NotReady(STOPPING), scope)(scope, receive, answer.send)
        except Exception as error:
            if not isinstance(error, Unauthenticated):
                log.exception("a request failed", request_id=answer.request_id, path=scope["path"])
            if answer.has_started:
                raise  # the server cuts the connection, so that nobody takes the answer for whole
            await response_to(error, scope)(scope, receive, answer.send)

    def _tenant(self, scope: Scope) -> str:
        return ANYONE if scope["path"] in OPEN else self._keys.tenant_of(Headers(scope=scope))


class _Answer:
    """One response on its way out: gets the headers that all responses have."""

    def __init__(self, headers: Headers, send: Send) -> None:
        given = headers.get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        self.has_started = False
        self._origin = headers.get("origin")
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self.request_id
            if self._origin is not None:
                headers["Access-Control-Allow-Origin"] = self._origin
                headers["Access-Control-Expose-Headers"] = "X-Request-Id, X-Job-Id, Retry-After"
                headers.add_vary_header("Origin")
        await self._send(message)


async def read_body(request: Request, limit: int) -> dict[str, Any]:
    """The request's JSON object. Raises InvalidRequest, or HTTP 413 over `limit` bytes."""
    return parse_object(await _read(request, limit))


async def read_body_if_any(request: Request, limit: int) -> dict[str, Any]:
    """The same where nothing need be said: without a body there are no fields."""
    raw = await _read(request, limit)
    return parse_object(raw) if raw else {}


async def read_list(request: Request, limit: int) -> list[Any]:
    """The request's JSON array. Raises the same."""
    return parse_list(await _read(request, limit))


async def _read(request: Request, limit: int) -> bytes:
    """The body, counted while it comes in.

    A little too much is read to its end and dropped: who is answered while still sending may never see the answer.
    """
    length = request.headers.get("content-length", "")
    is_patient = "expect" in request.headers  # it waits for our word before it sends
    if length.isdecimal() and int(length) > (limit if is_patient else 2 * limit):
        raise _too_large(limit)
    body = bytearray()
    n_bytes = 0
    async for chunk in request.stream():
        n_bytes += len(chunk)
        if n_bytes <= limit:
            body += chunk
        elif n_bytes > 2 * limit:
            break
    if n_bytes > limit:
        raise _too_large(limit)
    return bytes(body)


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


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"The body is larger than the {limit} bytes that this server takes")
