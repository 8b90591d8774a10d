"""In which order lines run: those that share the beginning of their prompt one behind the other, so that a worker
computes it once. Pure; what a prompt becomes is the worker's, so this is about the client's text.

Lines of one path and model stay together; among them those that share their first 64 characters, among these those that
share 256, and so on. Groups come in the order of their first lines, and nothing else changes places: a file whose lines
share nothing is run from its top to its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEPS = (64, 256, 1024, 4096, 16384)
"""Characters of a beginning that are compared."""

N_KEYS = 1 + len(STEPS)
"""Numbers that say where a line belongs, of 8 bytes each."""

_FIRST = ("tools", "functions", "instructions", "system_prompt", "system", "input_extra", "input_prefix")
_THEN = ("prompt", "messages", "input")
"""Fields in the order in which their texts come in a prompt, whatever family of paths they are of: templates put tools
and what the system says before all else."""

_NO_PROMPT = ("embed", "rerank")
"""In a path whose inputs have no beginning that is worth keeping."""


def keys_of(url: str, body: Mapping[str, Any]) -> tuple[int, ...]:
    """N_KEYS numbers, equal as far as lines belong together."""
    digest = hashlib.blake2b(f"{url}\0{body.get('model') or ''}".encode(), digest_size=8)
    keys = [int.from_bytes(digest.digest())]
    text = "" if any(part in url for part in _NO_PROMPT) else _beginning(body)
    start = 0
    for stop in STEPS:
        digest.update(text[start:stop].encode())
        keys.append(int.from_bytes(digest.digest()))
        start = stop
    return tuple(keys)


def prefix_order(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The places of lines in the order in which they run; `keys` has a row for each, of N_KEYS."""
    if not len(keys):
        return np.zeros(0, np.int64)
    # The last one counts most; lines that are equal in all stay as they are.
    return np.lexsort([_first_places(column) for column in keys.T[::-1]])


def _first_places(column: NDArray[np.uint64]) -> NDArray[np.int64]:
    """For each value the place where it stands first."""
    _, first, which = np.unique(column, return_index=True, return_inverse=True)
    return first[which].astype(np.int64)


def _beginning(body: Mapping[str, Any]) -> str:
    """Of what a prompt is made of, at least as much as is compared, if there is as much."""
    pieces, n_characters = [], 0
    for name in (*_FIRST, *_THEN):
        for piece in _texts(body.get(name)):
            pieces.append(piece[: STEPS[-1]])
            n_characters += len(pieces[-1]) + 1
            if n_characters >= STEPS[-1]:
                return "\0".join(pieces)
    return "\0".join(pieces)


def _texts(value: Any) -> Iterator[str]:
    match value:
        case None:
            return
        case str():
            yield value
        case dict():
            for name, item in value.items():
                yield name
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)
        case _:
            yield str(value)
