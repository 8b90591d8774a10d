"""The file of a run as a whole, and the keys under which its lines are asked. Lines and records are `api.lines`'s."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from api.lines.reading import BadLine, Line, LineChecker, read_lines
from api.lines.record import Subject


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
    n_bytes, sha256 = _fingerprint(path)
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


def _fingerprint(path: Path) -> tuple[int, str]:
    digest = hashlib.sha256()
    n_bytes = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
            n_bytes += len(piece)
    return n_bytes, digest.hexdigest()


def idempotency_key(run_id: str, line: Line) -> str:
    """The same for the same line of the same run: this is how a job made before a crash is found again."""
    return hashlib.sha256(b"%s\n%d\n%s" % (run_id.encode(), line.number, line.digest)).hexdigest()[:40]


def subject_of(line: Line, key: str) -> Subject:
    """Of the record of a line that was asked under this key."""
    return Subject(key[:24], line.number, line.custom_id)


def bad_subject_of(line: BadLine, run_id: str) -> Subject:
    """Of the record of a line that could not be asked."""
    identity = hashlib.sha256(f"{run_id}\n{line.number}".encode()).hexdigest()[:24]
    return Subject(identity, line.number, line.custom_id)


def written(body: Any) -> bytes:
    """The JSON of an answer. It may have half a surrogate pair in it, out of an echoed request."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
