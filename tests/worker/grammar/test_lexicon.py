"""A vocabulary for constrained texts, whatever tokens a model's file names."""

from __future__ import annotations

from shared.jobs import Constraint
from worker.grammar.lark import lark_of
from worker.grammar.lexicon import Lexicon

END, TEXT, MARK = 256, 257, 258


def test_a_token_of_a_kilobyte_harms_nobody_and_is_in_no_constrained_text() -> None:
    tokens = [*(bytes([byte]) for byte in range(256)), b"</s>", b"a" * 5000, b"<" * 5000]
    lexicon = Lexicon(tokens, frozenset({END, MARK}), frozenset({END}))
    matcher = lexicon.matcher(lark_of(Constraint(syntax="regex", text="a+")))
    assert matcher.validate_tokens([ord("a"), TEXT]) == 1
    assert matcher.validate_tokens([ord("a"), MARK]) == 1
    assert matcher.validate_tokens([ord("a"), ord("a"), END]) == 3
