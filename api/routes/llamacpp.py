"""llama.cpp's own paths."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from api.openapi import answers
from api.openapi.description import Pieces, Reach, described
from api.schemas import embeddings, llamacpp, openai, vocabulary
from api.schemas import rerank as ranking
from api.synchronous import answer, spoken


@described(
    "Continue a prompt, or several",
    reads=llamacpp.CompletionFields,
    gives=answers.Completions,
    streams=(Pieces.sse(answers.CompletionPiece | answers.Completion),),
    reach=Reach.JOB,
)
async def completion(request: Request) -> ASGIApp:
    return await spoken(request)


@described(
    "Fill a gap in code",
    reads=llamacpp.InfillFields,
    gives=answers.Completions,
    streams=(Pieces.sse(answers.CompletionPiece | answers.Completion),),
    reach=Reach.JOB,
)
async def infill(request: Request) -> ASGIApp:
    return await spoken(request)


@described(
    "Vectors of texts, as llama.cpp tells them",
    reads=embeddings.EmbeddingFields,
    gives=list[answers.NativeEmbedding],
    reach=Reach.JOB,
)
async def embedding(request: Request) -> ASGIApp:
    return await spoken(request)


@described(
    "Order documents by how well they answer a query",
    reads=ranking.RerankFields,
    gives=answers.Ranking,
    reach=Reach.JOB,
)
async def rerank(request: Request) -> ASGIApp:
    """In Jina's format, or in that of TEI."""
    return await spoken(request)


@described("Tokens of a text", reads=vocabulary.TokenizeFields, gives=answers.Tokens, reach=Reach.JOB)
async def tokenize(request: Request) -> ASGIApp:
    return await answer(request, vocabulary.tokenize)


@described("The text of tokens", reads=vocabulary.DetokenizeFields, gives=answers.Content, reach=Reach.JOB)
async def detokenize(request: Request) -> ASGIApp:
    return await answer(request, vocabulary.detokenize)


@described(
    "The prompt that a chat's messages become", reads=openai.ChatFields, gives=answers.RenderedPrompt, reach=Reach.JOB
)
async def apply_template(request: Request) -> ASGIApp:
    return await answer(request, vocabulary.apply_template)
