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
    return r"[ \t\r\n]*".join(map(re.escape, re.split(r"\s+", word)))


class Listener:
    """One reply, token by token. Costs the decode thread some microseconds for each."""

    def __init__(self, cue: Cue) -> None:
        self._word = re.compile(pattern_of(cue.word).encode())
        self._n_word = len(cue.word.encode()) + MOST_SPACE
        self._is_first = cue.is_first
        self._listens_for_end = not cue.word
        self._opening, self._closing = (mark.encode() for mark in cue.reasoning or ("", ""))
        self._is_reasoning = cue.is_reasoning
        self._may_open = bool(self._opening) and not cue.is_reasoning
        self._tokens: deque[tuple[int, int]] = deque()  # the last ones, with their bytes: all that a word may be in
        self._text = b""  # of these
        self._is_deaf = False

    def push(self, token: int, content: bytes) -> tuple[int, ...]:
        """The tokens that the word is in, once it has been said: the grammar begins with them. Before that, none."""
        if self._is_deaf:
            return ()
        self._tokens.append((token, len(content)))
        self._text += content
        if self._may_open:
            self._open()
        return self._hear_end() if self._is_reasoning else self._hear_word()

    def _open(self) -> None:
        """Whether it begins with reasoning."""
        begun = self._text.lstrip()
        self._is_reasoning = begun.startswith(self._opening)
        self._may_open = not self._is_reasoning and self._opening.startswith(begun)

    def _hear_end(self) -> tuple[int, ...]:
        at = self._text.find(self._closing)
        if at < 0:
            self._forget(len(self._closing))
            return ()
        if self._listens_for_end:
            return self._from(at)
        self._is_reasoning = False
        token, _ = self._tokens[-1]
        rest = self._text[at + len(self._closing) :]
        self._tokens.clear()
        self._text = b""
        return self.push(token, rest)

    def _hear_word(self) -> tuple[int, ...]:
        if not self._is_first:
            match = self._word.search(self._text)
            if match is None:
                self._forget(self._n_word)
            return self._from(match.start()) if match is not None else ()
        begun = self._text.lstrip()
        if self._word.match(begun):
            return self._from(len(self._text) - len(begun))
        self._is_deaf = len(begun) > self._n_word
        return ()

    def _from(self, start: int) -> tuple[int, ...]:
        """The tokens from the one on that has this byte."""
        while self._tokens[0][1] <= start:
            start -= self._tokens.popleft()[1]
        return tuple(token for token, _ in self._tokens)

    def _forget(self, n_bytes: int) -> None:
        """What is not in the last so many."""
        n_over = len(self._text) - n_bytes
        while n_over >= (size := self._tokens[0][1]):
            self._tokens.popleft()
            self._text = self._text[size:]
            n_over -= size
            if not self._tokens:
                return
