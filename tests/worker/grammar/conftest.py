"""A vocabulary in which any text is as many tokens as it has bytes, so that every boundary falls everywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shared.jobs import Constraint
from worker.grammar.lark import lark_of
from worker.grammar.lexicon import Lexicon

Accepts = Callable[[Constraint, str], bool]
END = 256


@pytest.fixture(scope="session")
def lexicon() -> Lexicon:
    return Lexicon([*(bytes([byte]) for byte in range(256)), b"</s>"], frozenset({END}), frozenset({END}))


@pytest.fixture(scope="session")
def accepts(lexicon: Lexicon) -> Accepts:
    """Whether a text is a sentence of a constraint: it can be written, and may end there."""

    def is_sentence(constraint: Constraint, text: str) -> bool:
        matcher = lexicon.matcher(lark_of(constraint))
        assert not matcher.is_error(), matcher.get_error()
        return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()

    return is_sentence
