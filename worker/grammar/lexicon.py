"""A model's vocabulary as llguidance wants it, and matchers of grammars over it. Knows no llama.cpp."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_CONTROL = b"\xff"
"""llguidance's mark of a token that is not text: no text has this byte."""
_LONGEST = 1024
"""Bytes of a token with its mark: llguidance ends the process over a longer one, since its tree of tokens counts depth
in ten bits."""

_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # 20 ms
    step_lexer_fuel=100_000,  # 7 ms: what one token of a hostile grammar takes from its neighbours
    step_max_items=50_000,  # 3 ms
    max_lexer_states=20_000,  # some 40 MB for each sequence
    max_grammar_size=500_000,
    verbose_errors=False,
)


class Lexicon:
    """`tokens` are the bytes of each id, `eog` the ids that end a generation: where there are none, one beyond the
    model's stands for them, so that the end of a text can be told. No constrained text has a token of a kilobyte.

    Building one takes some 0.15 s in which no other thread of Python runs.
    """

    def __init__(self, tokens: Sequence[bytes], control: frozenset[int], eog: frozenset[int]) -> None:
        self.tokens = tuple(tokens)
        self.control = control
        self.eog = eog
        marked = [_CONTROL + token if number in control else token for number, token in enumerate(tokens)]
        marked = [token if len(token) <= _LONGEST else _CONTROL + b"long" for token in marked]
        ends = sorted(eog)
        if not ends:
            ends = [len(marked)]
            marked.append(_CONTROL + b"end")
        self._tokenizer = LLTokenizer(_Tokens(marked, ends[0]), eos_token=ends)  # type: ignore[arg-type]
        self.n_bits = len(marked)

    @functools.cached_property
    def controls(self) -> dict[str, int]:
        """Control tokens by their text."""
        return {self.tokens[token].decode("utf-8", "replace"): token for token in sorted(self.control)}

    def __reduce__(self) -> tuple[type[Lexicon], tuple[tuple[bytes, ...], frozenset[int], frozenset[int]]]:
        return Lexicon, (self.tokens, self.control, self.eog)

    def matcher(self, lark: str) -> LLMatcher:
        """At the beginning of a text. That it failed is for itself to say. Other threads run meanwhile."""
        return LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0, limits=_LIMITS)


@functools.lru_cache(maxsize=2)
def lexicon(tokens: tuple[bytes, ...], control: frozenset[int], eog: frozenset[int]) -> Lexicon:
    """The same one again for a model that is loaded again."""
    return Lexicon(tokens, control, eog)


class _Tokens:
    """What llguidance reads a vocabulary from."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, tokens: list[bytes], end: int) -> None:
        self.tokens = tokens
        self.eos_token_id = end

    def __call__(self, text: str) -> list[int]:
        """Only asked for text that must come next, which we never look for."""
        return []
