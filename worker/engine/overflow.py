"""What goes when a context is full: of a prompt that does not fit, and of a sequence that has grown up to its end.

Pure: numbers and ids. The rules are those of llama.cpp's server of May 2024 and of ollama's llamarunner.
"""

from __future__ import annotations

from typing import NamedTuple

from shared.jobs import Generation, Truncation

LEAST_LEFT = 4
"""Tokens of a context that llama.cpp never lets be kept, so that something can go."""
SHIFTED_CONTEXTS = 10
"""Without an end of its own, a text that shifts goes on for so many contexts; ollama's number."""


def n_ctx_of(request: Generation, n_ctx: int) -> int:
    """How much of so long a context a request uses: less, if it says so, but as much as llama.cpp can cut a text to."""
    return n_ctx if request.n_ctx is None else min(n_ctx, max(request.n_ctx, LEAST_LEFT))


def n_kept(n_keep: int, n_prompt: int, n_ctx: int, *, adds_bos: bool) -> int:
    """Tokens at the beginning of a sequence that no shift takes: what was asked for, all of the prompt for -1, and a
    BOS besides; but one of the context's `n_ctx` can always go."""
    asked = n_prompt if n_keep < 0 else n_keep
    return min(asked + adds_bos, n_ctx - 1)


def n_shifted(n_ctx: int, n_kept: int, n_tokens: int, n_discard: int = 0) -> int:
    """Tokens behind the kept ones that go, so that a sequence of `n_tokens` has half of what is not kept free again,
    or `n_discard` less than now if that is given: at least one and nothing that is kept. 0 while there is that room."""
    if n_discard:
        return max(1, min(n_discard, n_tokens - n_kept)) if n_tokens >= n_ctx else 0
    n_free = max((n_ctx - n_kept) // 2, 1)
    return max(n_free - (n_ctx - n_tokens), 0)


def truncated(tokens: tuple[int, ...], n_ctx: int, n_keep: int, rule: Truncation, *, adds_bos: bool) -> tuple[int, ...]:
    """A prompt cut to fit into `n_ctx` tokens; as it is when it does.

    BLOCKS leaves room to generate in; the others leave none, so they want a smaller `n_ctx` than the context's.
    MESSAGES is for what is left of a chat when its last message alone does not fit: that is cut like TAIL.
    """
    if rule is not Truncation.BLOCKS:
        kept = n_kept(n_keep, len(tokens), n_ctx, adds_bos=adds_bos)
        return tokens if len(tokens) <= n_ctx else tokens[:kept] + tokens[kept + len(tokens) - n_ctx :]
    if len(tokens) < n_ctx:
        return tokens
    kept = max(0, min(len(tokens) if n_keep < 0 else n_keep, n_ctx - LEAST_LEFT))
    block = max((n_ctx - kept) // 2, 1)
    n_blocks = (len(tokens) - kept - block) // block
    return tokens[:kept] + tokens[kept + n_blocks * block :]


class Shift(NamedTuple):
    """What a sequence loses whenever its context is full, that is when all `n_ctx` tokens are in the cache and one
    more is known. The same each time, so that what is left is a function of all its tokens."""

    n_ctx: int
    n_kept: int
    n_gone: int
    """Behind the kept ones."""

    def n_left(self, n_tokens: int) -> int:
        """Of so many tokens since the beginning, those that are known."""
        n_over = n_tokens - (self.n_ctx + 1)
        return n_tokens - max(-(-n_over // self.n_gone), 0) * self.n_gone

    def has_happened(self, n_tokens: int) -> bool:
        """Whether so many tokens since the beginning took a shift."""
        return n_tokens > self.n_ctx + 1

    def left(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Of all tokens since the beginning, those that are known."""
        n_left = self.n_left(len(tokens))
        return tokens[: self.n_kept] + tokens[len(tokens) - n_left + self.n_kept :]


class FullContext(NamedTuple):
    """What a worker lets become of sequences that fill their context."""

    n_ctx: int
    shifts: bool = False
    """Where the request does not say."""
    shift_limit: int = 0
    """Tokens that a sequence which shifts may choose at most; 0 for ten contexts."""
    can_shift: bool = True
    """Whatever the request says."""
    is_moved: bool = True
    """Whether what a shift leaves is moved; else all of it is computed again, which should be seldom."""
    adds_bos: bool = False

    def shift(self, request: Generation, n_prompt: int) -> Shift | None:
        """What goes whenever the context of this request is full; None when the text ends there."""
        is_wanted = self.shifts if request.shift is None else request.shift
        if not (is_wanted and self.can_shift):
            return None
        n_ctx = n_ctx_of(request, self.n_ctx)
        kept = n_kept(request.n_keep, n_prompt, n_ctx, adds_bos=self.adds_bos)
        n_gone = n_shifted(n_ctx, kept, n_ctx, request.n_discard)
        if not self.is_moved:
            n_gone = max(n_gone, n_shifted(n_ctx, kept, n_ctx))
        return Shift(n_ctx, kept, n_gone)

    def n_most(self, request: Generation, n_prompt: int) -> int:
        """Tokens, those of the prompt included, with which a sequence ends at the latest."""
        n_ctx = n_ctx_of(request, self.n_ctx)
        if self.shift(request, n_prompt) is None:
            return n_ctx
        return max(n_ctx, n_prompt + (self.shift_limit or SHIFTED_CONTEXTS * n_ctx))
