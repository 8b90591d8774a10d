"""An item of a response's output while it grows: the events that open it, tell of it and close it, and what it is then.

Events come without their numbers. Knows no reply and no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

Json = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class Place(NamedTuple):
    """Which item an event is of."""

    output_index: int
    item_id: str

    def event(self, kind: str, **more: Any) -> Json:
        """Of something within the item."""
        return {"type": f"response.{kind}", **self._asdict(), **more}

    def item_event(self, kind: str, item: Json) -> Json:
        """Of the item itself."""
        return {"type": f"response.output_item.{kind}", "output_index": self.output_index, "item": item}


class Item(Protocol):
    def opening(self) -> list[Json]: ...

    def take(self, text: str, logprobs: Sequence[Json] = ()) -> None:
        """Keeps the next stretch until it is told."""

    def telling(self) -> list[Json]:
        """What was taken since."""

    def closing(self, status: Status) -> list[Json]: ...

    def json(self, status: Status) -> Json:
        """As it is, with all that was told."""


class _Growing:
    """A text that is told stretch by stretch."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._taken: list[str] = []

    def take(self, text: str) -> None:
        self._taken.append(text)

    def tell(self) -> str:
        stretch = "".join(self._taken)
        self._taken.clear()
        self._told.append(stretch)
        return stretch

    @property
    def text(self) -> str:
        return "".join(self._told)


class TextItem:
    """A message, or the reasoning before it: one part, whose text grows. Only a message has probabilities."""

    def __init__(self, place: Place, kind: Literal["message", "reasoning"]) -> None:
        self.kind = kind
        self._place = place
        self._text = _Growing()
        self._logprobs: list[Json] = []
        self._n_told = 0
        """Of the probabilities."""
        self._says = "output_text" if kind == "message" else "reasoning_text"

    def opening(self) -> list[Json]:
        item = self._item("in_progress", content=[])
        added = self._place.event("content_part.added", content_index=0, part=self._part())
        return [self._place.item_event("added", item), added]

    def take(self, text: str, logprobs: Sequence[Json] = ()) -> None:
        self._text.take(text)
        self._logprobs += logprobs

    def telling(self) -> list[Json]:
        stretch, logprobs = self._text.tell(), self._logprobs[self._n_told :]
        if not stretch:
            return []  # probabilities wait for the text that they are of
        self._n_told = len(self._logprobs)
        return [self._event("delta", delta=stretch, **self._with(logprobs))]

    def closing(self, status: Status) -> list[Json]:
        done = self._event("done", text=self._text.text, **self._with(self._logprobs))
        part_done = self._place.event("content_part.done", content_index=0, part=self._part())
        return [done, part_done, self._place.item_event("done", self.json(status))]

    def json(self, status: Status) -> Json:
        return self._item(status, content=[self._part()])

    def _event(self, kind: str, **more: Any) -> Json:
        return self._place.event(f"{self._says}.{kind}", content_index=0, **more)

    def _item(self, status: Status, content: list[Json]) -> Json:
        own: Json = {"role": "assistant"} if self.kind == "message" else {"summary": []}
        return {"id": self._place.item_id, "type": self.kind, "status": status, **own, "content": content}

    def _part(self) -> Json:
        part: Json = {"type": self._says, "text": self._text.text}
        if self.kind == "message":
            part["annotations"] = []
        return part | self._with(self._logprobs)

    def _with(self, logprobs: Sequence[Json]) -> Json:
        return {"logprobs": list(logprobs)} if self.kind == "message" else {}


class CallItem:
    """A call of a function, whose arguments grow."""

    def __init__(self, place: Place, call_id: str, name: str) -> None:
        self._place = place
        self._head = {"id": place.item_id, "type": "function_call", "call_id": call_id, "name": name}
        self._arguments = _Growing()

    def opening(self) -> list[Json]:
        return [self._place.item_event("added", self.json("in_progress"))]

    def take(self, text: str, logprobs: Sequence[Json] = ()) -> None:
        self._arguments.take(text)

    def telling(self) -> list[Json]:
        stretch = self._arguments.tell()
        return [self._place.event("function_call_arguments.delta", delta=stretch)] if stretch else []

    def closing(self, status: Status) -> list[Json]:
        done = self._place.event(
            "function_call_arguments.done", name=self._head["name"], arguments=self._arguments.text
        )
        return [done, self._place.item_event("done", self.json(status))]

    def json(self, status: Status) -> Json:
        return self._head | {"status": status, "arguments": self._arguments.text}
