"""The lines of a file, one at a time: which can be asked, and what is wrong with the others.

Whether a body is a request is not looked at here: its reader says that when the line is run. Knows no batch.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from api.schemas.dialect import ENDPOINTS
from api.schemas.strict import MAX_DEPTH, parse
from shared.batches import ANY_ENDPOINT
from shared.errors import InvalidRequest

MAX_LINE_BYTES = 32_000_000
"""Longer lines are skipped without being held in memory; the API takes no larger body by default either."""

URLS = ENDPOINTS
"""Paths that can be asked as a job. A service of another version may serve fewer; what it says is the line's record."""


@dataclass(frozen=True, slots=True)
class RawLine:
    index: int
    """Place among the lines that are not blank, from 0."""
    number: int
    """Line in the file, from 1."""
    text: bytes | None
    """Without its line end and white space around it; None when it was too long to be read."""
    offset: int = 0
    """Of `text` in the file, in bytes."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that can be asked. `body` is the request as the client wrote it."""

    index: int
    number: int
    custom_id: str
    url: str
    body: dict[str, Any]
    digest: bytes


@dataclass(frozen=True, slots=True)
class BadLine:
    index: int
    number: int
    custom_id: str | None
    code: str
    message: str
    param: str | None = None
    """The field of the line that is at fault."""


def read_lines(path: Path, *, limit: int | None = None, longest: int = MAX_LINE_BYTES) -> Iterator[RawLine]:
    """The lines that are not blank, one at a time, of the first `limit` bytes: a file may grow meanwhile."""
    with path.open("rb") as file:
        yield from lines_of(file, limit=limit, longest=longest)


def lines_of(file: BinaryIO, *, limit: int | None = None, longest: int = MAX_LINE_BYTES) -> Iterator[RawLine]:
    """The same of a file that stands at its beginning."""
    index = 0
    for number, (begin, line) in enumerate(_bounded_lines(file, limit, longest), start=1):
        if line is None:
            yield RawLine(index, number, None, begin)
            index += 1
            continue
        bare = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        text = bare.strip()
        if text:
            yield RawLine(index, number, text, begin + len(line) - len(bare.lstrip()))
            index += 1


def _bounded_lines(file: BinaryIO, limit: int | None, longest: int) -> Iterator[tuple[int, bytes | None]]:
    """Each line with its end, and where it begins."""
    end = limit if limit is not None else sys.maxsize
    place = 0
    while place < end and (text := file.readline(min(end - place, longest))):
        begin, place = place, place + len(text)
        if text.endswith(b"\n") or len(text) < longest:
            yield begin, text
            continue
        while place < end and not text.endswith(b"\n") and (text := file.readline(min(end - place, 1 << 20))):
            place += len(text)
        yield begin, None


class LineChecker:
    """Tells lines that can be asked from bad ones. Remembers the custom ids it saw, 16 bytes each."""

    def __init__(self, endpoint: str = ANY_ENDPOINT, *, longest: int = MAX_LINE_BYTES) -> None:
        """`endpoint`: the path that all lines must ask, or any."""
        self._longest = longest
        self._urls = URLS if endpoint == ANY_ENDPOINT else (endpoint,)
        self._seen: set[bytes] = set()

    def __call__(self, line: RawLine) -> Line | BadLine:
        try:
            return self._asked(line)
        except _Fault as fault:
            return BadLine(line.index, line.number, fault.custom_id, fault.code, fault.message, _PARAMS.get(fault.code))

    def _asked(self, line: RawLine) -> Line:
        if line.text is None:
            raise _Fault("line_too_long", f"the line is longer than {self._longest / 1e6:g} MB")
        content = _parse(line.text)
        if not isinstance(content, dict):
            raise _Fault("invalid_line", "the line is not a JSON object")
        custom_id = content.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id:
            raise _Fault("missing_custom_id", "the line has no custom_id, which must be a text")
        self._check_unique(custom_id)
        if content.get("method", "POST") != "POST":
            raise _Fault("invalid_method", "the method must be POST", custom_id)
        url = content.get("url")
        if not isinstance(url, str) or url not in self._urls:
            raise _Fault("invalid_url", self._why_not(url), custom_id)
        body = content.get("body")
        if not isinstance(body, dict):
            raise _Fault("invalid_body", "the body is not a JSON object", custom_id)
        if body.get("stream"):
            raise _Fault("stream_not_supported", "a line's answer cannot be streamed", custom_id)
        digest = hashlib.blake2b(line.text, digest_size=16).digest()
        return Line(line.index, line.number, custom_id, url, body, digest)

    def _check_unique(self, custom_id: str) -> None:
        mark = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
        if mark in self._seen:
            raise _Fault("duplicate_custom_id", "an earlier line has this custom_id", custom_id)
        self._seen.add(mark)

    def _why_not(self, url: Any) -> str:
        shown = json.dumps(url)[:80]
        if len(self._urls) == 1 and url in URLS:
            return f"the url {shown} is not the endpoint of the batch, {self._urls[0]}"
        known = f"{', '.join(URLS[:-1])} and {URLS[-1]}"
        return f"the url {shown} cannot be run; {known} can"


_PARAMS = {
    "missing_custom_id": "custom_id",
    "duplicate_custom_id": "custom_id",
    "invalid_method": "method",
    "invalid_url": "url",
    "invalid_body": "body",
    "stream_not_supported": "body.stream",
}


class _Fault(Exception):
    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.custom_id = code, message, custom_id


def _parse(text: bytes) -> Any:
    """As strictly as the body of a request, which may be nested as deeply in a line as alone."""
    try:
        return parse(text, "the line", max_depth=MAX_DEPTH + 1)
    except InvalidRequest as error:
        raise _Fault("invalid_json", error.message) from None
