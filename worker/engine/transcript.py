"""What one sequence has said: ids go in, and come out with the text that they release.

Belongs to the scribe. Knows nothing of llama.cpp, slots or batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from worker.engine.text import Detokenizer, StopMatcher


class Utterance(NamedTuple):
    """Text that is final, and the ids that go with it."""

    text: str
    ids: tuple[int, ...]


class Transcript:
    """Ids to text, for one sequence.

    Invariant: whoever has the ids of the utterances so far, and pushes them into a new transcript, gets the same
    text out of it and the same text held back. So what releases text is said with it, and with every id before; text
    is never said without an id, but for what was held back when the end comes from outside. Ids of a stop string are
    not said, unless one of them released text in front of it.
    """

    def __init__(self, stops: Iterable[str], token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._detokenizer = Detokenizer()
        self._stops = StopMatcher(stops)
        self._said: list[str] = []
        self._unsaid: list[int] = []
        self.ids: list[int] = []
        self.is_closed = False
        """Its sequence ended; whoever ends it sets this."""

    @property
    def text(self) -> str:
        """Everything said so far."""
        return "".join(self._said)

    @property
    def stopping_word(self) -> str:
        """The stop string that was met, or nothing."""
        return self._stops.found

    def push(self, token: int, *, is_last: bool = False) -> Utterance | None:
        """The next id. `is_last`: no other comes, so nothing is held back."""
        self.ids.append(token)
        self._unsaid.append(token)
        return self._say(self._detokenizer.push(self._token_bytes(token)), is_last)

    def flush(self) -> Utterance | None:
        """Whatever was held back."""
        return self._say("", True)

    def replay(self, tokens: Iterable[int]) -> None:
        """Ids that were said by an earlier attempt: afterwards all is as if they had been said here."""
        for token in tokens:
            self.push(token)
            self._unsaid.clear()

    def _say(self, text: str, is_last: bool) -> Utterance | None:
        released = self._stops.push(text)
        if is_last:
            released += self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        if released:
            self._said.append(released)
        ids: tuple[int, ...] = ()
        if released or (is_last and not self._stops.found):
            ids, self._unsaid = tuple(self._unsaid), []
        return Utterance(released, ids) if released or ids else None
