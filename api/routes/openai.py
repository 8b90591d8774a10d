"""OpenAI's paths."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from api.openapi import answers
from api.openapi.description import Pieces, Reach, described
from api.schemas import embeddings as vectors
from api.schemas import openai
from api.synchronous import spoken


@described(
    "The next message of a chat",
    reads=openai.ChatFields,
    gives=answers.ChatCompletion,
    streams=(Pieces.sse(answers.ChatPiece),),
    reach=Reach.JOB,
)
async def chat_completions(request: Request) -> ASGIApp:
    return await spoken(request)


@described(
    "Continue a prompt, or several, in OpenAI's form",
    reads=openai.TextCompletionFields,
    gives=answers.TextCompletion,
    streams=(Pieces.sse(answers.TextCompletion),),
    reach=Reach.JOB,
)
async def completions(request: Request) -> ASGIApp:
    return await spoken(request)


@described("Vectors of texts", reads=vectors.EmbeddingFields, gives=answers.Embeddings, reach=Reach.JOB)
async def embeddings(request: Request) -> ASGIApp:
    return await spoken(request)
