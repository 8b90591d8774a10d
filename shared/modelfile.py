"""The files of a model, and of what goes with it: whether they are there, and are what their names say.

Knows not what is in them.
"""

from __future__ import annotations

import re
from pathlib import Path


class LoadFailed(Exception):
    """A model, or what goes with it, cannot be had. The message is one sentence for people."""


_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""How the parts of a split model are called; llama.cpp finds the others by the name of the first."""


def check_file(path: Path) -> None:
    """LoadFailed when it, or a part of what it is the first part of, is missing, unreadable or no GGUF file."""
    for part in parts_of(path):
        check_kind(part, "--model", "model")


def check_kind(path: Path, flag: str, what: str) -> None:
    """LoadFailed when what a flag names is missing, unreadable or no GGUF file."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise LoadFailed(f"cannot read the {what} {path}: {(error.strerror or str(error)).lower()}") from None
    if magic != b"GGUF":
        raise LoadFailed(f"{flag}: {path} is not a GGUF file")


def parts_of(path: Path) -> list[Path]:
    """The files of a model that is named by its only or its first one. LoadFailed for a later one."""
    named = _PART.fullmatch(path.name)
    if named is None:
        return [path]
    count = int(named["count"])
    parts = [path.with_name(f"{named['stem']}-{n + 1:05}-of-{count:05}.gguf") for n in range(count)]
    if int(named["number"]) != 1:
        raise LoadFailed(f"--model: {path} is a later part of a model; name the first, {parts[0] if parts else 'of 1'}")
    return parts


def size_of(path: Path) -> int:
    """Bytes of all its files. OSError."""
    return sum(part.stat().st_size for part in parts_of(path))
