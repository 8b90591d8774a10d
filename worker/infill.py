"""The prompt of what stands between two texts, with the tokens that the model was taught for it.

The order is that of llama.cpp's server: other files first, then prefix and suffix around the gap, whose beginning may
be written already. Knows no jobs.
"""

from __future__ import annotations

from shared.errors import NotSupported
from shared.jobs import Infill
from worker.engine import FillTokens
from worker.rules import Rules
from worker.vocabulary import Piece, Vocabulary, pieces_of

PROJECT = "myproject\n"
HERE = "filename\n"
SNIPPET = "\n\n--- snippet ---\n\n"
"""What llama.cpp writes where a file's name belongs: models know the pattern."""
N_MARKS = 6
"""Tokens of a prompt that are neither text nor name, and one to be generated."""


class InfillPrompter:
    def __init__(self, vocabulary: Vocabulary, marks: FillTokens, rules: Rules, *, bos: int | None) -> None:
        """`bos` is the token that a prompt begins with, if one does."""
        self._vocabulary = vocabulary
        self._marks = marks
        self._rules = rules
        self._bos = bos

    def tokens(self, request: Infill) -> tuple[int, ...]:
        """At most a batch of text around the gap, three of four tokens before it; other files as far as there is room.

        NotSupported when the model lacks one of the three tokens.
        """
        self._check_supported()
        # A context of less than two batches leaves half of itself to them.
        n_ctx = self._rules.n_ctx_of(request)
        n_around = min(self._rules.n_batch, n_ctx // 2)
        begun = self._tokens(self._vocabulary.tail(pieces_of(request.prompt), n_around), "prompt")
        prefix = self._tail(pieces_of(request.prefix, parse_special=False), 3 * (n_around // 4), "input_prefix")
        n_suffix = max(0, n_around // 4 - 2 - len(begun))
        suffix = self._head(pieces_of(request.suffix, parse_special=False), n_suffix, "input_suffix")
        n_extra = n_ctx - n_around - N_MARKS - 2 * max(0, request.n_predict)
        extra = self._tail(self._extra(request), max(0, n_extra), "input_extra")
        before = (self._marks.prefix, *prefix, *begun)
        after = (self._marks.suffix, *suffix)
        sides = (*after, *before) if self._rules.is_suffix_first else (*before, *after)
        start = () if self._bos is None else (self._bos,)
        return (*extra, *start, *sides, self._marks.middle)

    def _check_supported(self) -> None:
        names = {"prefix": self._marks.prefix, "suffix": self._marks.suffix, "middle": self._marks.middle}
        missing = "".join(f"{name} token is missing. " for name, token in names.items() if token < 0)
        if missing:
            raise NotSupported(f"Infill is not supported by this model: {missing}")

    def _extra(self, request: Infill) -> list[Piece]:
        """Other files, each behind its name, and the name of this one."""
        pieces: list[Piece] = []
        if self._marks.repository >= 0:
            pieces += [Piece(self._marks.repository), Piece(PROJECT, parse_special=False)]
        has_names = self._marks.separator >= 0
        for name, text in request.extra:
            heading = [Piece(self._marks.separator), Piece(f"{name}\n", parse_special=False)]
            pieces += heading if has_names else [Piece(SNIPPET, parse_special=False)]
            pieces.append(Piece(text, parse_special=False))
        if has_names:
            pieces += [Piece(self._marks.separator), Piece(HERE, parse_special=False)]
        return pieces

    def _head(self, pieces: list[Piece], n_tokens: int, field: str) -> tuple[int, ...]:
        return self._tokens(self._vocabulary.head(pieces, n_tokens + 1), field)[:n_tokens]

    def _tail(self, pieces: list[Piece], n_tokens: int, field: str) -> tuple[int, ...]:
        tokens = self._tokens(self._vocabulary.tail(pieces, n_tokens + 1), field)
        return tokens[max(0, len(tokens) - n_tokens) :]

    def _tokens(self, pieces: list[Piece], field: str) -> tuple[int, ...]:
        return self._vocabulary.tokens(pieces, field, add_special=False)
