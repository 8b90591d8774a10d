"""llama.cpp's own paths."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from api.schemas import embeddings, llamacpp, vocabulary
from api.schemas import rerank as ranking
from api.synchronous import answer


async def completion(request: Request) -> ASGIApp:
    return await answer(request, llamacpp.completion)


async def infill(request: Request) -> ASGIApp:
    return await answer(request, llamacpp.infill)


async def embedding(request: Request) -> ASGIApp:
    return await answer(request, embeddings.embedding)


async def rerank(request: Request) -> ASGIApp:
    """In Jina's format, or in that of TEI."""
    return await answer(request, ranking.rerank)


async def tokenize(request: Request) -> ASGIApp:
    return await answer(request, vocabulary.tokenize)


async def detokenize(request: Request) -> ASGIApp:
    return await answer(request, vocabulary.detokenize)


async def apply_template(request: Request) -> ASGIApp:
    return await answer(request, vocabulary.apply_template)
