"""Writes down an answer. One of very many numbers takes seconds: it is written in a thread beside the event loop, which
has others to serve meanwhile.

Knows nothing of what an answer says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from api.schemas.strict import to_json
from shared.events import Finished, Vector

LARGE = 256 * 1024
"""Characters of vectors: those of as many take some 50 ms."""
DEPTH = 5
"""Of values whose members are written one by one: so deep in a job's result is a vector, which is written at once."""


async def rendered(endings: Iterable[Finished], body: Callable[[], Any]) -> bytes:
    """The JSON of what `body` makes of these endings."""
    n_characters = sum(len(part.f32) for ending in endings for part in ending.parts if isinstance(part, Vector))
    if n_characters < LARGE:
        return to_json(body())
    return await asyncio.to_thread(lambda: b"".join(pieces_of(body())))


def pieces_of(value: Any, depth: int = DEPTH) -> Iterator[bytes]:
    """The same as `to_json`, in pieces: nobody else runs while one of them is written, in whatever thread."""
    if depth and value and isinstance(value, dict):
        before = b"{"
        for name, item in value.items():
            yield before + to_json(name) + b":"
            yield from pieces_of(item, depth - 1)
            before = b","
        yield b"}"
    elif depth and isinstance(value, list) and value and isinstance(value[0], dict | list):
        before = b"["
        for item in value:
            yield before
            yield from pieces_of(item, depth - 1)
            before = b","
        yield b"]"
    else:
        yield to_json(value)
