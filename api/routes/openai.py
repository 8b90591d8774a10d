"""OpenAI's paths."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from api.schemas import embeddings as vectors
from api.schemas import openai
from api.synchronous import answer


async def chat_completions(request: Request) -> ASGIApp:
    return await answer(request, openai.chat)


async def completions(request: Request) -> ASGIApp:
    return await answer(request, openai.completions)


async def embeddings(request: Request) -> ASGIApp:
    return await answer(request, vectors.embeddings)
