"""llama.cpp's own paths that ask for the model's words and not for its thoughts: no dialect has others."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from api.schemas import vocabulary
from api.synchronous import answer


async def tokenize(request: Request) -> ASGIApp:
    return await answer(request, vocabulary.tokenize)


async def detokenize(request: Request) -> ASGIApp:
    return await answer(request, vocabulary.detokenize)


async def apply_template(request: Request) -> ASGIApp:
    return await answer(request, vocabulary.apply_template)
