"""A query and a document as one input, the way that a model which reranks was taught to read them.

llama.cpp's way: the text of the template `rerank`, where the model has one; else what its vocabulary puts around texts.
Knows no jobs and no limits.
"""

from __future__ import annotations

import re
from functools import lru_cache

from worker.engine import ModelFacts
from worker.vocabulary import Piece, Vocabulary

_HOLES = re.compile(r"(\{query\}|\{document\})")


class Pairs:
    """Thread-safe: the model is only read. `control_texts` are those of its tokens that are no text."""

    def __init__(self, facts: ModelFacts, vocabulary: Vocabulary, control_texts: frozenset[str]) -> None:
        self._vocabulary = vocabulary
        self._control_texts = control_texts
        self._tokens = facts.pair
        self._template = _HOLES.split(facts.rerank_template) if facts.rerank_template else []
        # One query has many documents.
        self._plain = lru_cache(maxsize=4)(self._find_plain)

    def n_least(self, query: str, document: str) -> int:
        """Tokens that the two have at least, known without tokenizing."""
        return self._vocabulary.n_least([Piece(query), Piece(document)])

    def tokens(self, query: str, document: str) -> tuple[int, ...]:
        """Control tokens count only where the model's own template has them, never in what a client writes."""
        if self._template:
            return self._vocabulary.tokens(self._pieces(query, document), "documents", add_special=False)
        before, between, after = self._tokens
        return (*before, *self._plain(query), *between, *self._find_plain(document), *after)

    def _pieces(self, query: str, document: str) -> list[Piece]:
        """In one piece wherever possible: cutting at the holes changes how words merge there."""
        texts = {"{query}": query, "{document}": document}
        if any(control in text for text in texts.values() for control in self._control_texts):
            return [Piece(texts.get(part, part), parse_special=part not in texts) for part in self._template]
        return [Piece("".join(texts.get(part, part) for part in self._template))]

    def _find_plain(self, text: str) -> tuple[int, ...]:
        return self._vocabulary.tokens([Piece(text, parse_special=False)], "documents", add_special=False)
