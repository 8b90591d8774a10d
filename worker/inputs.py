"""From what is to be embedded or ranked to tokens: each input fits, or loses its end, or the request is refused.

Knows no jobs and no engine.
"""

from __future__ import annotations

from functools import cached_property

from shared.errors import InvalidRequest, NotSupported
from shared.jobs import Embedding, Prompt, Rerank
from worker.engine import InputRules, ModelFacts
from worker.pairs import Pairs
from worker.prompting import SEAM
from worker.vocabulary import Piece, Vocabulary, pieces_of

MAX_VECTOR_BYTES = 32 * 2**20
"""Of one job, which the bus keeps in one piece: 2048 vectors of the widest models, or some ten thousand tokens' own."""


class InputReader:
    """Thread-safe: the model is only read."""

    def __init__(self, facts: ModelFacts, vocabulary: Vocabulary, pairs: Pairs, rules: InputRules) -> None:
        self._facts = facts
        self._vocabulary = vocabulary
        self._pairs = pairs
        self._rules = rules

    def to_embed(self, request: Embedding) -> list[tuple[int, ...]]:
        """The tokens of each input. InvalidRequest, NotSupported."""
        pooling = self._rules.pooling
        if pooling == "rank":
            raise NotSupported("this worker gives no embeddings: it reranks")
        if request.is_pooled and pooling == "none":
            raise InvalidRequest(
                "this worker has a vector for each token, and none for a whole input: its pooling is none",
                param="input",
            )
        self._check_room(len(request.inputs))  # before megabytes of them are tokenized
        read = self._cut_input if request.truncates else self._input
        inputs = [read(value, position) for position, value in enumerate(request.inputs)]
        if pooling == "none":
            self._check_room(sum(map(len, inputs)))
        return inputs

    def _check_room(self, n_vectors: int) -> None:
        n_most = MAX_VECTOR_BYTES // (4 * self._facts.n_embd)
        if n_vectors > n_most:
            raise InvalidRequest(
                f"{n_vectors} vectors are more than the {n_most} of this model that one request can have", param="input"
            )

    def _input(self, value: Prompt, position: int) -> tuple[int, ...]:
        pieces = pieces_of(value)
        self._check_input(self._vocabulary.n_least(pieces) or 1, f"input {position}", "input")
        tokens = self._vocabulary.tokens(pieces, "input", add_special=True)
        self._check_input(len(tokens), f"input {position}", "input")
        return tokens

    def _cut_input(self, value: Prompt, position: int) -> tuple[int, ...]:
        """Without the end of it that does not fit, but with what closes it: a [SEP] is no part of a text."""
        n_most = self._rules.n_most
        pieces = self._vocabulary.head(pieces_of(value), n_most + SEAM)
        tokens = self._vocabulary.tokens(pieces, "input", add_special=True)
        if len(tokens) > n_most:
            n_closing = min(self._n_closing, n_most) if isinstance(value, str) else 0
            tokens = tokens[: n_most - n_closing] + tokens[len(tokens) - n_closing :]
        self._check_input(len(tokens), f"input {position}", "input")
        return tokens

    @cached_property
    def _n_closing(self) -> int:
        """Tokens that the model's vocabulary puts behind each text."""
        return len(self._vocabulary.tokens([Piece("")], "input", add_special=True)) - self._facts.adds_bos

    def to_rank(self, request: Rerank) -> list[tuple[int, ...]]:
        """The tokens of each document with the query. InvalidRequest, NotSupported."""
        if self._rules.pooling != "rank":
            raise NotSupported(
                "this worker does not rerank: that takes a model that was made for it (`--reranking` if its file does"
                " not say so)"
            )
        pairs = []
        for position, document in enumerate(request.documents):
            about = f"document {position}, with the query,"
            self._check_input(self._pairs.n_least(request.query, document) or 1, about, "documents")
            pairs.append(self._pairs.tokens(request.query, document))
            self._check_input(len(pairs[-1]), about, "documents")
        return pairs

    def _check_input(self, n_tokens: int, about: str, field: str) -> None:
        if fault := self._rules.fault(n_tokens):
            raise InvalidRequest(f"{about} {fault}", param=field)
