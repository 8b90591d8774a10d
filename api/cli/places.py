"""Which line of the input a record is of, whoever wrote it. Knows no file and no service."""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_left
from typing import Any, NamedTuple

from api.lines.reading import Line
from api.lines.record import PREFIX, record_of


class Placed(NamedTuple):
    """A record, and where it goes."""

    index: int
    record: bytes


class Places:
    """Of lines that were asked, each with a `custom_id` of its own: some 150 bytes for each."""

    def __init__(self) -> None:
        self._ordinals: dict[bytes, int] = {}
        self._indexes, self._numbers = array("Q"), array("Q")

    def __len__(self) -> int:
        return len(self._indexes)

    def add(self, line: Line) -> None:
        """In the order of the file."""
        self._ordinals[_mark(line.custom_id)] = len(self._indexes)
        self._indexes.append(line.index)
        self._numbers.append(line.number)

    def place(self, text: bytes) -> Placed | None:
        """None for what is no record, or is of no line that was asked.

        A record stays as it is, to the byte, unless it lacks what ours have: an id of a request, the line of a failure.
        """
        try:
            content = json.loads(text)
        except ValueError:
            return None
        ordinal = self._ordinal(content) if isinstance(content, dict) else None
        if ordinal is None:
            return None
        ...
