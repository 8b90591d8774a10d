"""From bytes of tokens to text that may be said. Small machines with `push` and `flush`; they know strings alone."""

from __future__ import annotations

import codecs
from collections.abc import Iterable


class Detokenizer:
    """Bytes to text. A character is given out whole or, when its end never comes, as one U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, content: bytes) -> str:
        return self._decoder.decode(content)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class IndentMatcher:
    """Lets text through up to a line, other than the first, that is indented by less than `n_indent` spaces and tabs.

    The rule is llama.cpp's: the indentation itself is let through, and an empty line counts as not indented.
    """

    def __init__(self, n_indent: int = 0) -> None:
        self._n_indent = n_indent
        self._n_blanks: int | None = None  # of the current line; None: no matter how many more
        self.is_met = False
        """Nothing is let through after it."""

    def push(self, text: str) -> str:
        if self.is_met:
            return ""
        if not self._n_indent:
            return text
        for at, character in enumerate(text):
            if self._n_blanks is not None:
                if character in " \t":
                    self._n_blanks += 1
                    continue
                if self._n_blanks < self._n_indent:
                    self.is_met = True
                    return text[:at]
            self._n_blanks = 0 if character == "\n" else None
        return text


class StopMatcher:
    """Lets text through up to the first stop string, and holds back what could still become one.

    Of several stops the one that is complete first wins, so that the result does not depend on how the text was cut
    into tokens; of two that end together, the one that began first. Empty stops are ignored.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found = ""
        """The stop string that was met; nothing is let through after it."""

    def push(self, text: str) -> str:
        if self.found:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        self._held = ""
        met = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if met:
            _, at, self.found = min(met)
            return text[:at]
        at = self._start_of_partial(text)
        self._held = text[at:]
        return text[:at]

    def flush(self) -> str:
        """What was held back: no more text comes, so it is no stop."""
        text, self._held = self._held, ""
        return text

    def _start_of_partial(self, text: str) -> int:
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(stop.startswith(text[at:]) for stop in self._stops):
                return at
        return len(text)
