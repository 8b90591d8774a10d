"""Answers that come whole: no path that gives them is ever streamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from api.framing import Framing
from api.schemas.ask import Heard
from shared.events import Finished


class WholeShape:
    """One job's ending, rendered. Of several jobs that all say the same, the first one's."""

    def __init__(self, render: Callable[[Finished], Any]) -> None:
        self._render = render

    @property
    def framing(self) -> Framing:
        raise AssertionError("never streamed")

    def say(self, heard: Heard) -> bytes:
        raise AssertionError("never streamed")

    def end(self) -> bytes:
        raise AssertionError("never streamed")

    def failed(self, error: Exception) -> bytes:
        raise AssertionError("never streamed")

    def body(self, endings: Sequence[Finished]) -> Any:
        return self._render(endings[0])
