"""What clients speak: for each path what reads its body, and in whose shape the answer comes. Chosen once, at start.

`today` is llama.cpp, OpenAI and the others as they are now. `2024` is the same with the paths overlaid whose shape has
changed since llama.cpp's server of May 2024; how they were is in `of_2024`. Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from api.schemas import embeddings, llamacpp, of_2024, openai, rerank, responses
from api.schemas.ask import Ask
from api.schemas.ollama import requests as ollama
from api.schemas.ollama.fields import EmbedBody, EmbeddingsBody
from api.schemas.strict import read
from shared.jobs import Compat, Generation

Reader = Callable[[dict[str, Any]], Ask]
"""Makes the job of a body. Raises InvalidRequest or NotSupported."""


@dataclass(frozen=True, slots=True)
class Dialect:
    name: Compat
    readers: Mapping[str, Reader]
    """By path: every one that a job can stand for."""
    slot: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """What today's answer says of one slot, as these clients read it."""
    health: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """The same of a server that is well."""

    @property
    def defaults(self) -> Generation:
        """A completion that says nothing but its prompt."""
        request = self.readers["/completion"]({"prompt": ""}).request
        assert isinstance(request, Generation)
        return request


TODAY = Dialect(
    Compat.TODAY,
    {
        "/completion": llamacpp.completion,
        "/completions": llamacpp.completion,
        "/infill": llamacpp.infill,
        "/v1/completions": openai.completions,
        "/v1/chat/completions": openai.chat,
        "/chat/completions": openai.chat,
        "/v1/responses": responses.response,
        "/responses": responses.response,
        "/v1/embeddings": embeddings.embeddings,
        "/embedding": embeddings.embedding,
        "/embeddings": embeddings.embedding,
        "/v1/rerank": rerank.rerank,
        "/v1/reranking": rerank.rerank,
        "/rerank": rerank.rerank,
        "/reranking": rerank.rerank,
        "/api/generate": ollama.generate_whole,
        "/api/chat": ollama.chat_whole,
        "/api/embed": lambda fields: ollama.embed(read(EmbedBody, fields)),
        "/api/embeddings": lambda fields: ollama.embeddings(read(EmbeddingsBody, fields)),
    },
)

OF_2024 = Dialect(
    Compat.OF_2024,
    {
        **TODAY.readers,
        "/completion": of_2024.completion,
        "/completions": of_2024.completion,
        "/v1/completions": of_2024.completion,
        "/infill": of_2024.infill,
        "/v1/chat/completions": of_2024.chat,
        "/chat/completions": of_2024.chat,
        "/v1/embeddings": of_2024.embeddings,
        "/embedding": of_2024.embeddings,
        "/embeddings": of_2024.embeddings,
    },
    slot=of_2024.slot,
    health=of_2024.health,
)

DIALECTS = {dialect.name: dialect for dialect in (TODAY, OF_2024)}

ENDPOINTS = tuple(TODAY.readers)
"""The paths, which are the same in all dialects."""
