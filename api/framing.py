"""How the objects of a stream go over the wire, and what goes there while there is nothing to say.

Knows no job and no client family; the two wires are `sse` and `ndjson`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Framing(NamedTuple):
    headers: Mapping[str, str]
    keep_alive: Callable[[], bytes]
    """What keeps a silent connection open, and is nothing to who reads it."""
