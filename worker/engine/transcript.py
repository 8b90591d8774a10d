"""What one sequence has said: ids go in, and come out with the text that they release.

Belongs to the scribe. Knows nothing of llama.cpp, slots or batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from shared.events import ChosenLogprob, StopType
from worker.engine.logprobs import cut_to
from worker.engine.text import Detokenizer, IndentMatcher, StopMatcher


class Utterance(NamedTuple):
    """Text that is final, and the ids that go with it. Each has its logprob, if they are told, but for those that a
    stop leaves no text of, and for the end of a generation."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[ChosenLogprob, ...] = ()


class _Scored(NamedTuple):
    """`start` is where the token's text begins, in characters."""

    start: int
    logprob: ChosenLogprob


class Transcript:
    """Ids to text, for one sequence.

    Invariant: whoever has the ids of the utterances so far, and pushes them into a new transcript, gets the same
    text out of it and the same text held back. So what releases text is said with it, and with every id before; text
    is never said without an id, but for what was held back when the end comes from outside. Ids of a stop string are
    not said, unless one of them released text in front of it.
    """

    def __init__(self, stops: Iterable[str], token_bytes: Callable[[int], bytes], n_indent: int = 0) -> None:
        self.token_bytes = token_bytes
        """Of ids as they are told here."""
        self._detokenizer = Detokenizer()
        self._stops = StopMatcher(stops)
        self._indents = IndentMatcher(n_indent)
        self._said: list[str] = []
        self._n_read = 0  # characters that came out of the ids, held back or not
        self._unsaid: list[int] = []
        self._scored: list[_Scored] = []
        self._n_told = 0  # of those, how many were said
        self.ids: list[int] = []
        self.has_new_line = False
        """Whether one was said."""
        self.is_closed = False
        """Its sequence ended; whoever ends it sets this."""

    @property
    def text(self) -> str:
        """Everything said so far."""
        return "".join(self._said)

    @property
    def logprobs(self) -> tuple[ChosenLogprob, ...]:
        """Of the tokens whose text, or its beginning, is in `text`. Where a stop cut it, the last piece is cut too."""
        if self.stop_type is None:
            return tuple(scored.logprob for scored in self._scored)
        text = self.text
        return cut_to(text, [scored.logprob for scored in self._scored if scored.start < len(text)])

    @property
    def stop_type(self) -> StopType | None:
        """What in the text ended it."""
        if self._indents.is_met:
            return StopType.LIMIT
        return StopType.WORD if self._stops.found else None

    @property
    def stopping_word(self) -> str:
        """The stop string that ended the text, or nothing."""
        return "" if self._indents.is_met else self._stops.found

    def push(self, token: int, logprob: ChosenLogprob | None = None, *, is_last: bool = False) -> Utterance | None:
        """The next id. `is_last`: no other comes, so nothing is held back."""
        self.ids.append(token)
        self._unsaid.append(token)
        if logprob is not None:
            self._scored.append(_Scored(self._n_read, logprob))
        text = self._detokenizer.push(self.token_bytes(token))
        self._n_read += len(text)
        return self._say(text, is_last)

    def flush(self) -> Utterance | None:
        """Whatever was held back."""
        return self._say("", True)

    def replay(self, tokens: Sequence[int], logprobs: Sequence[ChosenLogprob] = ()) -> None:
        """Ids that were said by an earlier attempt: afterwards all is as if they had been said here."""
        for token, logprob in zip_longest(tokens, logprobs[: len(tokens)]):
            self.push(token, logprob)
            self._unsaid.clear()

    def _say(self, text: str, is_last: bool) -> Utterance | None:
        released = self._stops.push(text)
        if is_last:
            released += self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        released = self._indents.push(released)
        if released:
            self._said.append(released)
            self.has_new_line = self.has_new_line or "\n" in released
        if not released and not (is_last and self.stop_type is None and self._unsaid):
            return None
        ids, self._unsaid = tuple(self._unsaid), []
        return Utterance(released, ids, self._tell())

    def _tell(self) -> tuple[ChosenLogprob, ...]:
        """The logprobs that were not said yet."""
        if self.stop_type is not None:
            return self.logprobs[self._n_told :]
        untold = tuple(scored.logprob for scored in self._scored[self._n_told :])
        self._n_told = len(self._scored)
        return untold
