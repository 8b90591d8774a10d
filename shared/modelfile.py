"""A model's file, or its files: whether they are there, and are what their names say. Knows not what is in them."""

from __future__ import annotations

import re
from pathlib import Path


class BadModelFile(Exception):
    """It cannot be loaded. The message is one sentence that names it."""


_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""How the parts of a split model are called; llama.cpp finds the others by the name of the first."""


def check_file(path: Path) -> None:
    """BadModelFile when it, or a part of what it is the first part of, is missing, unreadable or no GGUF file."""
    for part in parts_of(path):
        try:
            with part.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise BadModelFile(f"cannot read the model {part}: {(error.strerror or str(error)).lower()}") from None
        if magic != b"GGUF":
            raise BadModelFile(f"--model: {part} is not a GGUF file")


def parts_of(path: Path) -> list[Path]:
    """The files of a model that is named by its only or its first one. BadModelFile for a later one."""
    named = _PART.fullmatch(path.name)
    if named is None:
        return [path]
    count = int(named["count"])
    parts = [path.with_name(f"{named['stem']}-{n + 1:05}-of-{count:05}.gguf") for n in range(count)]
    if int(named["number"]) != 1:
        raise BadModelFile(
            f"--model: {path} is a later part of a model; name the first, {parts[0] if parts else 'of 1'}"
        )
    return parts


def size_of(path: Path) -> int:
    """Bytes of all its files. OSError."""
    return sum(part.stat().st_size for part in parts_of(path))
