"""Ids of what the bus keeps besides jobs: unguessable, and each names the partition that it lives in. Pure."""

from __future__ import annotations

import hashlib
import re
import secrets
from enum import StrEnum
from functools import lru_cache


class Kind(StrEnum):
    """What an id is of: what it begins with."""

    FILE = "file-"
    BATCH = "batch_"
    ENDPOINT = "whep_"
    """A webhook endpoint."""
    DELIVERY = "wh_"
    EVENT = "evt_"


_REST = re.compile(r"([0-9]{1,4})_([0-9a-f]{24})", re.ASCII)


def new_id(kind: Kind, partition: int) -> str:
    """`<kind><partition>_<24 hex>`."""
    return f"{kind}{partition}_{secrets.token_hex(12)}"


def derived_id(kind: Kind, partition: int, *parts: str) -> str:
    """The same id for the same parts, and as good as no other: what is made again after a crash is the same thing."""
    return f"{kind}{partition}_{digest_of(*parts)[:24]}"


def digest_of(*parts: str) -> str:
    """64 hex digits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=4096)
def partition_in(text: str, kind: Kind) -> int:
    """The partition in an id. ValueError when it is no id of that kind."""
    rest = _REST.fullmatch(text.removeprefix(kind)) if text.startswith(kind) else None
    if rest is None:
        raise ValueError(f"not an id of a {kind.name.lower()}: {text!r}")
    return int(rest[1])
