"""Vectors of texts, as OpenAI and as llama.cpp ask for them and answer. OpenAI's judge is its SDK.

Knows neither how a worker pools nor how long an input may be.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from api.schemas.answers import prompt_usage_json, vectors_of
from api.schemas.ask import Ask
from api.schemas.lane import LaneFields
from api.schemas.prompts import Inputs, inputs_of
from api.schemas.strict import bad_field, by_hand, needs_one_of, read
from api.schemas.whole import WholeShape
from shared.events import Finished, Vector
from shared.jobs import MAX_NORM, Embedding, Prompt


class EmbeddingFields(LaneFields):
    model_config = ConfigDict(json_schema_extra=needs_one_of("input", "content"))

    encoding_format: Literal["float", "base64"] = "float"
    """llama.cpp's own answer has numbers whatever is asked for."""
    input: Annotated[Any, by_hand(Inputs)] = None
    content: Annotated[Any, by_hand(Inputs)] = None
    """llama.cpp's name for it, which means its answer."""
    dimensions: Annotated[Any, by_hand(None)] = None
    """The model's vectors cannot be shortened."""
    embd_normalize: int = Field(2, ge=-1, le=MAX_NORM)


def embeddings(fields: dict[str, Any]) -> Ask:
    """The one job of a `/v1/embeddings` body. Raises InvalidRequest, or NotSupported for what is not text."""
    typed = read_fields(fields)
    if typed.input is None and typed.content is not None:
        return embedding(fields)  # llama.cpp's name for it means its answer
    is_base64 = typed.encoding_format == "base64"
    return Ask(
        request=Embedding(inputs=_inputs(typed), norm=typed.embd_normalize, is_pooled=True),
        shape=lambda origin: WholeShape(
            lambda ending: _openai_json(ending, typed.model or origin.model, is_base64=is_base64)
        ),
        model=typed.model,
        lane=typed.lane,
    )


def embedding(fields: dict[str, Any]) -> Ask:
    """The one job of an `/embedding` body, whose inputs are in `input`, or in `content`. Raises as above."""
    typed = read_fields(fields)
    return Ask(
        request=Embedding(inputs=_inputs(typed), norm=typed.embd_normalize),
        shape=lambda _: WholeShape(_native_json),
        model=typed.model,
        lane=typed.lane,
    )


def read_fields(fields: dict[str, Any]) -> EmbeddingFields:
    typed = read(EmbeddingFields, fields)
    if typed.dimensions is not None:
        raise bad_field("dimensions", "the model's vectors cannot be shortened")
    return typed


def _inputs(typed: EmbeddingFields) -> tuple[Prompt, ...]:
    """From the first of the two names that is given; the other is checked, too."""
    named = {"input": typed.input, "content": typed.content}
    given = [inputs_of(name, value) for name, value in named.items() if value is not None]
    if not given:
        raise bad_field("input", "is needed, or 'content'")
    return given[0]


def _openai_json(ending: Finished, model: str, *, is_base64: bool) -> dict[str, Any]:
    """`model` is the name the client used."""
    vectors = vectors_of(ending)
    return {
        "model": model,
        "object": "list",
        "usage": prompt_usage_json(vectors),
        "data": [_item(vector, is_base64=is_base64) for vector in vectors],
    }


def _item(vector: Vector, *, is_base64: bool) -> dict[str, Any]:
    item: dict[str, Any] = {
        "embedding": vector.f32 if is_base64 else vector.values().tolist(),
        "index": vector.index,
        "object": "embedding",
    }
    if is_base64:
        item["encoding_format"] = "base64"
    return item


def _native_json(ending: Finished) -> list[dict[str, Any]]:
    """Rows for each input: one where the worker pools, else one for each token."""
    return [{"index": vector.index, "embedding": vector.rows().tolist()} for vector in vectors_of(ending)]
