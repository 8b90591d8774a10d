"""Which documents answer a query best: the fields and the answers of Jina and of Hugging Face's TEI, told apart by what
they call the documents.

Scores are the model's own numbers, as llama.cpp tells them. Whether the model was made for it, its worker knows.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from api.schemas.answers import prompt_usage_json, scores_of
from api.schemas.ask import Ask
from api.schemas.lane import LaneFields
from api.schemas.sampling import INT32_MAX
from api.schemas.strict import bad_field, needs_one_of, read
from api.schemas.whole import WholeShape
from shared.events import Finished, Score
from shared.jobs import Rerank

MAX_DOCUMENTS = 2048
"""Of one request, like prompts of one array; more is a bulk file."""


class DocumentForm(TypedDict):
    text: str


def _text(document: Any) -> Any:
    """Jina takes objects too."""
    return document.get("text") if isinstance(document, dict) else document


Documents = Annotated[
    list[Annotated[str, BeforeValidator(_text, str | DocumentForm)]] | None,
    Field(None, min_length=1, max_length=MAX_DOCUMENTS),
]


class RerankFields(LaneFields):
    model_config = ConfigDict(json_schema_extra=needs_one_of("documents", "texts"))

    query: str
    documents: Documents
    """Jina's name for them."""
    texts: Documents
    """TEI's."""
    top_n: int | None = Field(None, ge=1, le=INT32_MAX)
    return_documents: bool = False
    return_text: bool = False

    @property
    def has_text(self) -> bool:
        return self.return_documents or self.return_text


def rerank(fields: dict[str, Any]) -> Ask:
    """The one job of a body. Raises InvalidRequest."""
    typed = read(RerankFields, fields)
    documents = typed.documents or typed.texts
    if documents is None:
        raise bad_field("documents", "is needed, or 'texts'")
    render = _jina_json if typed.documents else _tei_json
    return Ask(
        request=Rerank(query=typed.query, documents=tuple(documents)),
        shape=lambda origin: WholeShape(lambda ending: render(ending, typed.model or origin.model, documents, typed)),
        model=typed.model,
        lane=typed.lane,
    )


def _jina_json(ending: Finished, model: str, documents: list[str], typed: RerankFields) -> dict[str, Any]:
    """`model` is the name the client used."""
    results = []
    for score in _best(ending, typed):
        result: dict[str, Any] = {"index": score.index, "relevance_score": score.score}
        results.append(result | ({"document": {"text": documents[score.index]}} if typed.has_text else {}))
    return {"model": model, "object": "list", "usage": prompt_usage_json(scores_of(ending)), "results": results}


def _tei_json(ending: Finished, model: str, documents: list[str], typed: RerankFields) -> list[dict[str, Any]]:
    results = []
    for score in _best(ending, typed):
        result: dict[str, Any] = {"index": score.index, "score": score.score}
        results.append(result | ({"text": documents[score.index]} if typed.has_text else {}))
    return results


def _best(ending: Finished, typed: RerankFields) -> list[Score]:
    """The best first; equals in the order of their documents."""
    return sorted(scores_of(ending), key=lambda score: -score.score)[: typed.top_n]
