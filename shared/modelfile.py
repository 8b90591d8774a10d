"""The files of a model, and of what goes with it: whether they are there, and are what their names say.

Knows not what is in them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class LoadFailed(Exception):
    """A model, or what goes with it, cannot be had. The message is one sentence for people."""


_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<n_parts>\d{5})\.gguf")
"""How the parts of a split model are called; llama.cpp finds the others by the name of the first."""


class Split(NamedTuple):
    """The place of a file among the parts of a model."""

    stem: str
    number: int = 1
    n_parts: int = 1

    @classmethod
    def of(cls, path: str) -> Split:
        found = _PART.fullmatch(path)
        if found is None:
            return cls(path.removesuffix(".gguf"))
        return cls(found["stem"], int(found["number"]), int(found["n_parts"]))

    def paths(self) -> list[str]:
        """Of all parts, in order, for a model that has several."""
        return [f"{self.stem}-{number:05}-of-{self.n_parts:05}.gguf" for number in range(1, self.n_parts + 1)]


def check_file(path: Path) -> None:
    """LoadFailed when it, or a part of what it is the first part of, is missing, unreadable or no GGUF file."""
    for part in parts_of(path):
        check_kind(part, "--model", "model")


def check_kind(path: Path, flag: str, what: str) -> None:
    """LoadFailed when what a flag names is missing, unreadable or no GGUF file."""
    try:
        if not (path.is_file() or path.is_dir()) and path.exists():
            # A pipe would be waited for, by whoever opens it, for ever; and llama.cpp goes back and forth in a file.
            raise LoadFailed(f"cannot read the {what} {path}: not a file")
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise LoadFailed(f"cannot read the {what} {path}: {(error.strerror or str(error)).lower()}") from None
    if magic != b"GGUF":
        raise LoadFailed(f"{flag}: {path} is not a GGUF file")


def parts_of(path: Path) -> list[Path]:
    """The files of a model that is named by its only or its first one. LoadFailed for a later one."""
    split = Split.of(path.name)
    if (split.number, split.n_parts) == (1, 1):
        return [path]
    parts = [path.with_name(name) for name in split.paths()]
    if split.number != 1:
        raise LoadFailed(f"--model: {path} is a later part of a model; name the first, {parts[0] if parts else 'of 1'}")
    return parts


def size_of(path: Path) -> int:
    """Bytes of all its files. OSError."""
    return sum(part.stat().st_size for part in parts_of(path))
