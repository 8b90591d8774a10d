"""A request's body: read within bounds, and taken apart beside the event loop when it is large. Knows no field."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from api.schemas.strict import parse_list, parse_object

T = TypeVar("T")

LARGE = 256 * 1024
"""Bytes from which on a body is taken apart in a thread: up to there it is a matter of some milliseconds."""

_BESIDE = ThreadPoolExecutor(1, "large-body")
"""One for all: large bodies wait for each other, so that the event loop has one rival for the interpreter at most."""


async def read_as(request: Request, limit: int, read: Callable[[dict[str, Any]], T]) -> T:
    """What `read` makes of the request's JSON object. It may run in a thread, and may raise what it likes. Raises
    InvalidRequest, or HTTP 413 over `limit` bytes."""
    return await _taken_apart(await _received(request, limit), lambda raw: read(parse_object(raw)))


async def read_body_if_any(request: Request, limit: int) -> dict[str, Any]:
    """The object where nothing need be said: without a body there are no fields."""
    return await _taken_apart(await _received(request, limit), lambda raw: parse_object(raw) if raw else {})


async def read_list(request: Request, limit: int) -> list[Any]:
    """The request's JSON array. Raises the same."""
    return await _taken_apart(await _received(request, limit), parse_list)


async def _taken_apart(raw: bytes, read: Callable[[bytes], T]) -> T:
    if len(raw) < LARGE:
        return read(raw)
    return await asyncio.get_running_loop().run_in_executor(_BESIDE, read, raw)


async def _received(request: Request, limit: int) -> bytes:
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


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"The body is larger than the {limit} bytes that this server takes")
