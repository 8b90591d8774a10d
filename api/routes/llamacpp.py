"""llama.cpp's own paths."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from api.schemas import llamacpp
from api.synchronous import answer


async def completion(request: Request) -> ASGIApp:
    return await answer(request, llamacpp.completion)
