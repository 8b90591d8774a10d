"""OpenAI's embeddings: their fields and their answer. The judge is the `openai` SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from api.schemas.answers import embedding_usage_json, vectors_of
from api.schemas.ask import Ask, Heard
from api.schemas.prompts import inputs_of
from api.schemas.strict import ClientFields, bad_field, read
from shared.events import Finished, Vector
from shared.jobs import Embedding, Lane


class EmbeddingFields(ClientFields):
    model: str | None = None
    priority: Lane | None = Field(None, strict=False)
    service_tier: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Any = None
    embd_normalize: Literal[-1, 2] = 2


def embeddings(fields: dict[str, Any]) -> Ask:
    """The one job of an embeddings body. Raises InvalidRequest."""
    typed = read(EmbeddingFields, fields)
    if fields.get("input") is None:
        raise bad_field("input", "is needed")
    if typed.dimensions is not None:
        raise bad_field("dimensions", "the model's vectors cannot be shortened")
    request = Embedding(inputs=inputs_of("input", fields["input"]), norm=typed.embd_normalize)
    return Ask(
        request=request,
        shape=lambda origin: EmbeddingShape(typed.model or origin.model, is_base64=typed.encoding_format == "base64"),
        model=typed.model,
        lane=typed.priority or (Lane.BULK if typed.service_tier == "flex" else None),
    )


class EmbeddingShape:
    """A list of vectors; `model` is the name the client used."""

    def __init__(self, model: str, *, is_base64: bool) -> None:
        self._model = model
        self._is_base64 = is_base64

    def say(self, heard: Heard) -> bytes:
        raise AssertionError("embeddings are never streamed")

    def end(self) -> bytes:
        raise AssertionError("embeddings are never streamed")

    def failed(self, error: Exception) -> bytes:
        raise AssertionError("embeddings are never streamed")

    def body(self, endings: Sequence[Finished]) -> Any:
        vectors = vectors_of(endings[0])
        return {
            "model": self._model,
            "object": "list",
            "usage": embedding_usage_json(vectors),
            "data": [self._item(vector) for vector in vectors],
        }

    def _item(self, vector: Vector) -> dict[str, Any]:
        item: dict[str, Any] = {
            "embedding": vector.f32 if self._is_base64 else vector.values().tolist(),
            "index": vector.index,
            "object": "embedding",
        }
        if self._is_base64:
            item["encoding_format"] = "base64"
        return item
