"""A grammar over characters, as a tree: what a parsed GBNF is. Values only."""

from __future__ import annotations

from dataclasses import dataclass

LAST_CHARACTER = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
"""Code points that are no characters: no text has them."""

Ranges = tuple[tuple[int, int], ...]
"""Code points, as ascending ranges with both ends, that neither touch nor overlap."""


@dataclass(frozen=True, slots=True, eq=False)
class Characters:
    """One character of these."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """One token of the model, as `<[123]>` or `<name>`; a caret behind the first bracket means any other."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """All of these, in their order; none is the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One of these."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """This so many times; `most` is None for no limit."""

    part: Node
    least: int
    most: int | None


Node = Characters | Token | Reference | Row | Choice | Repeat


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Row(parts):
            return parts
        case Choice(options):
            return options
        case Repeat(part):
            return (part,)
        case _:
            return ()


def joined(ranges: list[tuple[int, int]]) -> Ranges:
    """The same code points, in order, without surrogates."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    low, high = SURROGATES
    pieces = [piece for first, last in merged for piece in ((first, min(last, low - 1)), (max(first, high + 1), last))]
    return tuple((first, last) for first, last in pieces if first <= last)


def complement(ranges: Ranges) -> Ranges:
    """Every other character."""
    edges = [-1, *(edge for pair in ranges for edge in pair), LAST_CHARACTER + 1]
    gaps = [(last + 1, first - 1) for last, first in zip(edges[::2], edges[1::2], strict=True)]
    return joined([gap for gap in gaps if gap[0] <= gap[1]])
