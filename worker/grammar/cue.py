"""What must have been said before a grammar begins: the end of reasoning, or the words that open a call.

Until then anything may be said, at no cost. Knows bytes of tokens alone.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

MOST_SPACE = 64
"""Bytes of white space that words may have among them and before them."""


@dataclass(frozen=True, slots=True)
class Cue:
    """`word` is what opens a call; without one, it is the end of reasoning that is waited for."""

    word: str = ""
    is_first: bool = False
    """It counts only where an answer begins."""
    reasoning: tuple[str, str] | None = None
    is_reasoning: bool = False
    """From the beginning on."""


def pattern_of(word: str) -> str:
    """A regular expression for it with any white space, or none, where it has some."""
    return r"\s*".join(map(re.escape, re.split(r"\s+", word)))


class Listener:
    """One reply, token by token."""

    def __init__(self, cue: Cue) -> None:
        self._word = re.compile(pattern_of(cue.word).encode())
        self._n_word = len(cue.word.encode()) + MOST_SPACE
        self._is_first = cue.is_first
        self._listens_for_end = not cue.word
        self._opening, self._closing = (mark.encode() for mark in cue.reasoning or ("", ""))
        self._is_reasoning = cue.is_reasoning
        self._may_open = bool(self._opening) and not cue.is_reasoning
        self._heard: deque[tuple[int, bytes]] = deque()  # the last tokens: as many as a word may be in
        self._is_deaf = False

    def push(self, token: int, content: bytes) -> tuple[int, ...]:
        """The tokens that the word is in, once it has been said: the grammar begins with them. Before that, none."""
        if self._is_deaf:
            return ()
        self._heard.append((token, content))
        text = b"".join(each for _, each in self._heard)
        if self._is_reasoning:
            return self._end(text)
        if self._may_open:
            self._open(text)
            if self._is_reasoning:
                return self._end(text)
        match = self._word.match(text.lstrip()) if self._is_first else self._word.search(text)
        if match is not None:
            start = match.start() + (len(text) - len(text.lstrip()) if self._is_first else 0)
            return self._from(start)
        if self._is_first:
            self._is_deaf = len(text.lstrip()) > self._n_word
        else:
            self._forget(self._n_word)
        return ()

    def _end(self, text: bytes) -> tuple[int, ...]:
        at = text.find(self._closing)
        if at < 0:
            self._forget(len(self._closing))
            return ()
        if self._listens_for_end:
            return self._from(at)
        self._is_reasoning = self._may_open = False
        rest = text[at + len(self._closing) :]
        token, _ = self._heard[-1]
        self._heard.clear()
        return self.push(token, rest) if rest else ()

    def _open(self, text: bytes) -> None:
        """Whether it begins with reasoning."""
        begun = text.lstrip()
        self._is_reasoning = begun.startswith(self._opening)
        self._may_open = self._is_reasoning or self._opening.startswith(begun)

    def _from(self, start: int) -> tuple[int, ...]:
        """The tokens from the one on that has this byte."""
        n_before = 0
        while n_before + len(self._heard[0][1]) <= start:
            n_before += len(self._heard.popleft()[1])
        return tuple(token for token, _ in self._heard)

    def _forget(self, n_bytes: int) -> None:
        """What is not in the last so many."""
        n_kept = sum(len(content) for _, content in self._heard)
        while n_kept - len(self._heard[0][1]) >= n_bytes:
            n_kept -= len(self._heard.popleft()[1])
