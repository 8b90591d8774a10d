"""`/embedding`, `/embeddings` and `/v1/embeddings` of May 2024, which were one path: the name that the inputs have
chooses the answer."""

from __future__ import annotations

from typing import Any

from api.schemas import embeddings as today
from api.schemas.answers import vectors_of
from api.schemas.ask import Ask
from api.schemas.prompts import inputs_of
from api.schemas.strict import bad_field
from api.schemas.whole import WholeShape
from shared.events import Finished
from shared.jobs import Embedding


def embeddings(fields: dict[str, Any]) -> Ask:
    """The job of a body. Raises InvalidRequest, or NotSupported for what is not text."""
    if fields.get("input") is not None:
        return today.embeddings(fields)
    typed = today.read_fields(fields)
    if fields.get("content") is None:
        raise bad_field("input", "is needed, or 'content'")
    inputs = inputs_of("content", fields["content"])
    if len(inputs) > 1:
        raise bad_field("content", "must be one text; 'input' takes several")
    return Ask(
        request=Embedding(inputs=inputs, norm=typed.embd_normalize, is_pooled=True),
        shape=lambda _: WholeShape(_bare_json),
        model=typed.model,
        lane=typed.lane,
    )


def _bare_json(ending: Finished) -> dict[str, Any]:
    (vector,) = vectors_of(ending)
    return {"embedding": vector.values().tolist()}
