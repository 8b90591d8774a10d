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
