"""Documents and a query, in Jina's words and in TEI's."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas.ask import Origin
from api.schemas.rerank import MAX_DOCUMENTS, rerank
from shared.errors import InvalidRequest
from shared.events import Finished, Score
from shared.jobs import Lane, Rerank

SCORES = (-2.5, 7.0, 0.0, 7.0)
DOCUMENTS = ["a", "b", "c", "d"]


def answered(**fields: Any) -> Any:
    """The answer to a query about DOCUMENTS, whose scores are SCORES, told in the order in which they were done."""
    parts = tuple(Score(index=index, prompt_tokens=3, score=SCORES[index]) for index in (2, 0, 3, 1))
    shape = rerank({"query": "q"} | fields).shape(Origin("job_0_1", "tiny", 0))
    return shape.body([Finished(status="succeeded", parts=parts)])


def test_jinas_answer_has_the_best_first_and_equals_in_their_order() -> None:
    assert answered(documents=DOCUMENTS) == {
        "model": "tiny",
        "object": "list",
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
        "results": [
            {"index": 1, "relevance_score": 7.0},
            {"index": 3, "relevance_score": 7.0},
            {"index": 2, "relevance_score": 0.0},
            {"index": 0, "relevance_score": -2.5},
        ],
    }
    assert answered(documents=DOCUMENTS, model="mine")["model"] == "mine"


def test_teis_answer_is_a_bare_list() -> None:
    assert answered(texts=DOCUMENTS) == [
        {"index": 1, "score": 7.0},
        {"index": 3, "score": 7.0},
        {"index": 2, "score": 0.0},
        {"index": 0, "score": -2.5},
    ]


@pytest.mark.parametrize(("top_n", "n_told"), [(1, 1), (3, 3), (4, 4), (99, 4), (None, 4)])
def test_only_the_best_are_told_when_asked_for(top_n: int | None, n_told: int) -> None:
    jina = answered(documents=DOCUMENTS, top_n=top_n)
    assert len(jina["results"]) == len(answered(texts=DOCUMENTS, top_n=top_n)) == n_told
    assert jina["usage"]["total_tokens"] == 12


@pytest.mark.parametrize("flag", ["return_documents", "return_text"])
def test_texts_come_back_when_asked_for(flag: str) -> None:
    [jina] = answered(documents=[{"text": text} for text in DOCUMENTS], top_n=1, **{flag: True})["results"]
    assert jina == {"index": 1, "relevance_score": 7.0, "document": {"text": "b"}}
    assert answered(texts=DOCUMENTS, top_n=1, **{flag: True}) == [{"index": 1, "score": 7.0, "text": "b"}]


def test_documents_reach_the_worker_in_their_order() -> None:
    ask = rerank({"query": "q", "documents": ["b", {"text": "a"}, ""], "service_tier": "flex"})
    assert ask.request == Rerank(query="q", documents=("b", "a", ""))
    assert ask.lane is Lane.BULK


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": None, "documents": ["a"]}, "query"),
        ({"query": ["q"], "documents": ["a"]}, "query"),
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": "a"}, "documents"),
        ({"query": "q", "documents": {"text": "a"}}, "documents"),
        ({"query": "q", "documents": [5]}, r"documents\[0\]"),
        ({"query": "q", "documents": ["a", {"title": "b"}]}, r"documents\[1\]"),
        ({"query": "q", "documents": ["a"] * (MAX_DOCUMENTS + 1)}, "documents"),
        ({"query": "q", "texts": [None]}, r"texts\[0\]"),
        ({"query": "q", "texts": ["a"], "top_n": 0}, "top_n"),
        ({"query": "q", "texts": ["a"], "top_n": 1.5}, "top_n"),
        ({"query": "q", "texts": ["a"], "top_n": True}, "top_n"),
        ({"query": "q", "texts": ["a"], "top_n": 10**30}, "top_n"),
        ({"query": "q", "texts": ["a"], "return_text": "yes"}, "return_text"),
        ({"query": "q", "texts": ["a"], "priority": "urgent"}, "priority"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_field_of_the_wrong_kind_is_refused_by_name(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^Field '{name}'"):
        rerank(fields)


def test_documents_are_needed_by_either_name() -> None:
    with pytest.raises(InvalidRequest, match=r"^Field 'documents': is needed, or 'texts'$"):
        rerank({"query": "q"})
