"""Images as a model takes them: rows in place of tokens.

Values only; how rows are made is the business of `vision`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from worker.engine.cells.spans import NO_SPANS, Span, Spans
from worker.engine.llama import Floats, Ids, Rows

IMAGE_MARK = "<__media__>"
"""What is shown where an image stands, as in llama.cpp."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageRows:
    """An image that is encoded, or a slice of one."""

    id: int
    """Stands for each of its rows where a token would stand. Negative, and no other image of this worker has it: what
    begins with the same ids begins with the same images."""
    values: Floats
    """(rows, width of the model's input)."""
    n_positions: int
    places: Ids | None = None
    """(4, rows): for M-RoPE, the positions of each row in four dimensions where the image begins at 0."""
    steps: Ids | None = None
    """Of the same shape: by how much each grows when the image begins one later; 0 or 1."""
    is_causal: bool = True
    """Whether a row sees only those before it; if not, all are computed at once."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_whole(self) -> bool:
        """Whether no part of it can stay in the cache."""
        return not self.is_causal or self.places is not None

    def rows(self, start: int, end: int, position: int) -> Rows:
        """Some of them, of an image that begins at this position."""
        places = None
        if self.places is not None and self.steps is not None:
            places = self.places[:, start:end] + position * self.steps[:, start:end]
        return Rows(self.values[start:end], places, self.is_causal)


@dataclass(frozen=True, slots=True)
class Picture:
    """One image as it stands in a prompt: its slices, and the tokens before, between and behind them."""

    parts: tuple[tuple[int, ...] | ImageRows, ...]

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.parts))

    @property
    def n_bytes(self) -> int:
        return sum(part.values.nbytes for part in self.parts if isinstance(part, ImageRows))


class Placed(NamedTuple):
    """Rows in a prompt."""

    start: int
    """Index of the first of them among the prompt's tokens."""
    rows: ImageRows

    @property
    def end(self) -> int:
        return self.start + len(self.rows)


def spans_of(images: Iterable[Placed]) -> Spans:
    spans = [Span(start, len(rows), rows.n_positions, rows.is_whole) for start, rows in images]
    return Spans(spans) if spans else NO_SPANS
