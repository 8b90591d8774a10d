"""Text tables for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Column(NamedTuple):
    title: str
    is_text: bool = False
    """To the left; numbers stand to the right."""


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """A row that is shorter than the others ends with a remark, which may run on."""
    whole = [[column.title for column in columns], *(row for row in rows if len(row) == len(columns))]
    whole += [row[:-1] for row in rows if len(row) < len(columns)]
    widths = [max(len(row[i]) for row in whole if i < len(row)) for i in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        cells = [
            text.ljust(width) if column.is_text or (len(row) < len(columns) and text is row[-1]) else text.rjust(width)
            for text, width, column in zip(row, widths, columns, strict=False)
        ]
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in ([column.title for column in columns], *rows))
