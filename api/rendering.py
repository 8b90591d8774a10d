"""Writes down an answer. One of very many numbers takes seconds: it is written in a thread beside the event loop, which
has others to serve meanwhile.

Knows nothing of what an answer says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from api.schemas.strict import to_json
from shared.events import Answer, Finished, Part, Vector

LARGE = 256 * 1024
"""Characters of vectors: those of as many take some 50 ms."""
ALTERNATIVE = 64
"""Characters of a vector that take as long as one probability of a token."""
DEPTH = 10
"""Of values whose members are written one by one: so deep in a page of jobs are the probabilities of a chat."""
SHORT = 64
"""Members that are written together."""


async def rendered(endings: Iterable[Finished], body: Callable[[], Any]) -> bytes:
    """The JSON of what `body` makes of these endings."""
    if sum(_size(part) for ending in endings for part in ending.parts) < LARGE:
        return to_json(body())
    return await asyncio.to_thread(lambda: b"".join(pieces_of(body())))


def _size(part: Part) -> int:
    """In characters of vectors."""
    match part:
        case Vector(f32=text):
            return len(text)
        case Answer(logprobs=entries):
            return ALTERNATIVE * sum(1 + len(entry.top) for entry in entries)
    return 0


def pieces_of(value: Any, depth: int = DEPTH) -> Iterator[bytes]:
    """The same as `to_json`, in pieces: nobody else runs while one of them is written, in whatever thread."""
    if depth and value and isinstance(value, dict) and not _is_small(value):
        before = b"{"
        for name, item in value.items():
            yield before + to_json(name) + b":"
            yield from pieces_of(item, depth - 1)
            before = b","
        yield b"}"
    elif depth and isinstance(value, list) and value and isinstance(value[0], dict | list):
        n_together = SHORT if _is_small(value[0]) else 1
        before = b"["
        for begin in range(0, len(value), n_together):
            yield before
            if n_together == 1:
                yield from pieces_of(value[begin], depth - 1)
            else:
                yield to_json(value[begin : begin + n_together])[1:-1]
            before = b","
        yield b"]"
    else:
        yield to_json(value)


def _is_small(value: Any) -> bool:
    """Whether nothing stands in it but simple values and short lists of them. It takes much longer to write such values
    one by one."""
    items = value.values() if isinstance(value, dict) else value
    return len(value) <= SHORT and not any(
        isinstance(item, dict)
        or (isinstance(item, list) and (len(item) > SHORT or any(isinstance(each, dict | list) for each in item)))
        for item in items
    )
