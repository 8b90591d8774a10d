"""What a reply says, as the items of a response: reasoning, messages and calls, one after the other.

A function of the text alone, however it is cut: whoever reads all of it at once has the same items as a stream. Gives
the events of a stream without their numbers. Knows no request.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from api.reply import CallPiece, ReplyReader, Said
from api.schemas.responses.items import CallItem, Item, Json, Place, Status, TextItem
from api.schemas.tools import call_id
from shared.events import ChosenLogprob, ReplyForm

_PREFIXES = {"reasoning": "rs", "message": "msg", "call": "fc"}

_STRETCH = re.compile(r"[^}]*\}|[^}]+")
"""What a stretch says comes without its order. A call ends with a brace: cut behind each of them, a stretch has
reasoning first, then content, then the beginning of a call."""


class Output:
    """The items of one reply. `push` its text, then `close`; both give the events that this makes."""

    def __init__(
        self,
        job_id: str,
        form: ReplyForm | None,
        *,
        splits_reasoning: bool = True,
        probabilities: Callable[[Sequence[ChosenLogprob]], list[Json]] = lambda _: [],
    ) -> None:
        """The ids of all items are made of that of the job: whenever it is read, they are the same."""
        self.items: list[Json] = []
        """Those that are closed."""
        self.n_reasoning = 0
        """Characters of reasoning."""
        self._job_id = job_id
        self._reader = ReplyReader(form, splits_reasoning=splits_reasoning)
        self._probabilities = probabilities
        self._item: Item | None = None
        self._call = -1
        """The last one's place among the calls."""
        self._events: list[Json] = []

    def push(self, text: str, entries: Sequence[ChosenLogprob] = ()) -> list[Json]:
        """`entries` are of the tokens that the text consists of, if anybody asked for them."""
        for stretch, own in _stretches(text, entries):
            self._say(self._reader.push(stretch), own)
        return self._told()

    def close(self, *, is_cut: bool) -> list[Json]:
        """`is_cut`: the text did not end by itself."""
        self._say(self._reader.close(), ())
        self._end_item("incomplete" if is_cut else "completed")
        return self._told()

    def _say(self, said: Said, entries: Sequence[ChosenLogprob]) -> None:
        if said.reasoning:
            self._text_item("reasoning").take(said.reasoning)
            self.n_reasoning += len(said.reasoning)
        if said.content:
            self._text_item("message").take(said.content, self._probabilities(entries))
        elif isinstance(self._item, TextItem) and self._item.kind == "message" and not said.calls:
            self._item.take("", self._probabilities(entries))  # the text is said with the next token's
        for piece in said.calls:
            self._call_item(piece).take(piece.arguments)

    def _text_item(self, kind: Literal["reasoning", "message"]) -> Item:
        if isinstance(self._item, TextItem) and self._item.kind == kind:
            return self._item
        return self._begin(TextItem(self._place(kind), kind))

    def _call_item(self, piece: CallPiece) -> Item:
        if self._item is not None and self._call == piece.place:
            return self._item
        self._call = piece.place
        return self._begin(CallItem(self._place("call"), call_id(self._job_id, 0, piece.place), piece.name))

    def _place(self, kind: str) -> Place:
        index = len(self.items) + (self._item is not None)
        return Place(index, f"{_PREFIXES[kind]}_{self._job_id.removeprefix('job_')}_{index}")

    def _begin(self, item: Item) -> Item:
        self._end_item("completed")
        self._item = item
        self._events += item.opening()
        return item

    def _end_item(self, status: Status) -> None:
        if self._item is not None:
            self._events += [*self._item.telling(), *self._item.closing(status)]
            self.items.append(self._item.json(status))
            self._item = None

    def _told(self) -> list[Json]:
        events = [*self._events, *(self._item.telling() if self._item is not None else ())]
        self._events = []
        return events


def _stretches(text: str, entries: Sequence[ChosenLogprob]) -> Iterator[tuple[str, Sequence[ChosenLogprob]]]:
    """Stretches of a text, each with the entries of the tokens that end in it. A character of several tokens is the
    last one's."""
    raw, start = text.encode(), 0
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    for entry in entries:
        end = start + len(entry.piece_bytes)
        *others, last = _STRETCH.findall(decoder.decode(raw[start:end])) or [""]
        yield from ((other, ()) for other in others)
        yield last, (entry,)
        start = end
    yield from ((stretch, ()) for stretch in _STRETCH.findall(decoder.decode(raw[start:])))
