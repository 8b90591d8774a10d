"""The file of a run as a whole. Lines and records are `api.lines`'s."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import NamedTuple

from api.lines.reading import BadLine, Line, LineChecker, read_lines


class BadInput(Exception):
    """The file as a whole cannot be worked on. The message is one sentence."""


class Survey(NamedTuple):
    """What one look over the whole file found."""

    n_lines: int
    n_bytes: int
    sha256: str


def survey(path: Path) -> Survey:
    """Count and fingerprint the file. Raises BadInput when it cannot be read or no line can be asked."""
    if path.is_dir():
        raise BadInput(f"{path} is a folder, not a file")
    try:
        if not path.is_file():
            raise BadInput(f"{path} does not exist" if not path.exists() else f"{path} is not a regular file")
        return _survey(path)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None


def _survey(path: Path) -> Survey:
    check = LineChecker()
    has_good = False
    n_lines = 0
    first_fault: BadLine | None = None
    n_bytes, sha256 = fingerprint(path)
    for line in read_lines(path, limit=n_bytes):
        n_lines += 1
        if not has_good:
            match check(line):
                case Line():
                    has_good = True
                case BadLine() as fault:
                    first_fault = first_fault or fault
    if first_fault and not has_good:
        raise BadInput(f"{path} has no line that can be run; line {first_fault.number}: {first_fault.message}")
    if not n_lines:
        raise BadInput(f"{path} is empty")
    return Survey(n_lines, n_bytes, sha256)


def fingerprint(path: Path, *, limit: int | None = None) -> tuple[int, str]:
    """How many bytes it has, and their SHA-256; of the first `limit`."""
    digest = hashlib.sha256()
    n_bytes, left = 0, sys.maxsize if limit is None else limit
    with path.open("rb") as file:
        while piece := file.read(min(left, 1 << 20)):
            digest.update(piece)
            n_bytes += len(piece)
            left -= len(piece)
    return n_bytes, digest.hexdigest()
