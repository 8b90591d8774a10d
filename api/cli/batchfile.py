"""Lines of a bulk file, in and out, in OpenAI's batch format. Knows no HTTP client and no progress.

In:  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
Out: {"id": "batch_req_...", "custom_id": "a",
      "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}

Every line that is not blank has exactly one record in the output, in the order of the input. The record of a line
that failed also has its `line` in the file. A line that cannot be asked at all becomes a record whose `error` has
`code`, `message` and `line`.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from api.schemas.dialect import ENDPOINTS

MAX_LINE_BYTES = 32 * 1024 * 1024
"""Longer lines are skipped without being held in memory; the API takes no larger body by default either."""

URLS = ENDPOINTS
"""Paths that can be asked as a job. A service of another version may serve fewer; what it says is the line's record."""


LONGEST_REASON = 200


class BadInput(Exception):
    """The file as a whole cannot be worked on. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class RawLine:
    index: int
    """Place among the lines that are not blank, from 0: the place of its record in the output."""
    number: int
    """Line in the file, from 1."""
    text: bytes | None
    """Without its line end; None when it was too long to be read."""


@dataclass(frozen=True, slots=True)
class Ask:
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


class Survey(NamedTuple):
    """What one look over the whole file found."""

    n_lines: int
    n_bytes: int
    sha256: str


class Outcome(NamedTuple):
    """What a record counts for."""

    is_failed: bool
    prompt_tokens: int
    generated_tokens: int


class Failure(NamedTuple):
    """Why a line failed, for people: one short line of text."""

    custom_id: str | None
    reason: str


def read_lines(path: Path, *, limit: int | None = None) -> Iterator[RawLine]:
    """The lines that are not blank, one at a time, of the first `limit` bytes: a file may grow meanwhile."""
    index = 0
    with path.open("rb") as file:
        for number, line in enumerate(_bounded_lines(file, limit), start=1):
            text = line
            if text is not None:
                text = text.removeprefix(codecs.BOM_UTF8) if number == 1 else text
                text = text.strip()
            if text != b"":
                yield RawLine(index, number, text)
                index += 1


def _bounded_lines(file: BinaryIO, limit: int | None) -> Iterator[bytes | None]:
    left = limit if limit is not None else sys.maxsize
    while left > 0 and (text := file.readline(min(left, MAX_LINE_BYTES))):
        left -= len(text)
        if text.endswith(b"\n") or len(text) < MAX_LINE_BYTES:
            yield text
            continue
        while left > 0 and not text.endswith(b"\n") and (text := file.readline(min(left, 1 << 20))):
            left -= len(text)
        yield None


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
                case Ask():
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


class LineChecker:
    """Tells lines that can be asked from bad ones. Remembers the custom ids it saw, 16 bytes each."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def __call__(self, line: RawLine) -> Ask | BadLine:
        try:
            return self._ask(line)
        except _Fault as fault:
            return BadLine(line.index, line.number, fault.custom_id, fault.code, fault.message)

    def _ask(self, line: RawLine) -> Ask:
        if line.text is None:
            raise _Fault("line_too_long", f"the line is longer than {MAX_LINE_BYTES >> 20} MB")
        content = _parse(line.text)
        if not isinstance(content, dict):
            raise _Fault("invalid_line", "the line is not a JSON object")
        custom_id = content.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id:
            raise _Fault("missing_custom_id", "the line has no custom_id, which must be a text")
        if not _is_writable(custom_id):
            raise _Fault("invalid_custom_id", "the custom_id has half a surrogate pair in it")
        self._check_unique(custom_id)
        if content.get("method", "POST") != "POST":
            raise _Fault("invalid_method", "the method must be POST", custom_id)
        url = content.get("url")
        if not isinstance(url, str) or url not in URLS:
            known = f"{', '.join(URLS[:-1])} and {URLS[-1]} can"
            raise _Fault("invalid_url", f"the url {json.dumps(url)[:80]} cannot be run; {known}", custom_id)
        body = content.get("body")
        if not isinstance(body, dict):
            raise _Fault("invalid_body", "the body is not a JSON object", custom_id)
        if body.get("stream"):
            raise _Fault("stream_not_supported", "a line's answer cannot be streamed", custom_id)
        digest = hashlib.blake2b(line.text, digest_size=16).digest()
        return Ask(line.index, line.number, custom_id, url, body, digest)

    def _check_unique(self, custom_id: str) -> None:
        mark = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
        if mark in self._seen:
            raise _Fault("duplicate_custom_id", "an earlier line has this custom_id", custom_id)
        self._seen.add(mark)


class _Fault(Exception):
    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.custom_id = code, message, custom_id


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise _Fault("invalid_json", "the line is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise _Fault("invalid_json", f"the line is not JSON: {error.msg.lower()} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise _Fault("invalid_json", f"the line is not JSON that can be read: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def idempotency_key(run_id: str, ask: Ask) -> str:
    """The same for the same line of the same run: this is how a job made before a crash is found again."""
    return hashlib.sha256(b"%s\n%d\n%s" % (run_id.encode(), ask.number, ask.digest)).hexdigest()[:40]


def answered(ask: Ask, key: str, *, status: int, request_id: str | None, body: Any) -> bytes:
    """The record of a line that got an HTTP answer, good or bad."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _record(key[:24], ask.custom_id, response, None, failed_line=None if status == 200 else ask.number)


def unanswered(ask: Ask, key: str, *, code: str, message: str) -> bytes:
    """The record of a line whose job ended without an answer: cancelled, expired, gone."""
    error = {"code": code, "message": message, "line": ask.number}
    return _record(key[:24], ask.custom_id, None, error, failed_line=ask.number)


def refused(line: BadLine, run_id: str) -> bytes:
    """The record of a line that could not be asked."""
    identity = hashlib.sha256(f"{run_id}\n{line.number}".encode()).hexdigest()[:24]
    error = {"code": line.code, "message": line.message, "line": line.number}
    return _record(identity, line.custom_id, None, error, failed_line=line.number)


def _record(identity: str, custom_id: str | None, response: Any, error: Any, *, failed_line: int | None) -> bytes:
    record = {"id": f"batch_req_{identity}", "custom_id": custom_id, "response": response, "error": error}
    if failed_line is not None:
        record["line"] = failed_line
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half a surrogate pair somewhere in an echoed request
        return json.dumps(record, allow_nan=False, separators=(",", ":")).encode()


def outcome_of(record: bytes) -> Outcome:
    """What a record counts for. ValueError when it is no record of ours."""
    content = json.loads(record)
    if not isinstance(content, dict) or not str(content.get("id", "")).startswith("batch_req_"):
        raise ValueError("not a record")
    response = content.get("response")
    if not isinstance(response, dict):
        return Outcome(True, 0, 0)
    body = response.get("body")
    is_failed = response.get("status_code") != 200
    answers = body if isinstance(body, list) else [body]
    counts = [_tokens(answer) for answer in answers if isinstance(answer, dict)]
    return Outcome(is_failed, sum(prompt for prompt, _ in counts), sum(made for _, made in counts))


def failure_of(record: bytes) -> Failure:
    """What a record of ours says of a line that failed."""
    content = json.loads(record)
    fault, response = content.get("error"), content.get("response")
    reason = None
    if isinstance(response, dict):
        body = response.get("body")
        fault = body.get("error") if isinstance(body, dict) else None
        reason = f"status {response.get('status_code')}"
    if isinstance(fault, dict):
        reason = fault.get("message") or fault.get("code") or reason
    custom_id = content.get("custom_id")
    return Failure(
        _shortened(custom_id) if isinstance(custom_id, str) else None, _shortened(reason or "no reason given")
    )


def _shortened(text: Any) -> str:
    """On one line and without what a terminal would obey: others wrote the text."""
    shown = "".join(letter if letter.isprintable() else " " for letter in str(text)[:1000])
    shown = " ".join(shown.split())
    return shown if len(shown) <= LONGEST_REASON else f"{shown[: LONGEST_REASON - 3]}..."


_COUNTS = (
    ("prompt_tokens", "completion_tokens"),  # OpenAI's `usage`
    ("input_tokens", "output_tokens"),  # that of its responses
    ("prompt_eval_count", "eval_count"),  # ollama's
    ("tokens_evaluated", "tokens_predicted"),  # llama.cpp's
)


def _tokens(body: dict[str, Any]) -> tuple[int, int]:
    """Tokens of the prompt and of the text, by the names of the family that answered; 0 where it tells none."""
    usage = body.get("usage")
    told = usage if isinstance(usage, dict) else body
    prompt, text = next((names for names in _COUNTS if not told.keys().isdisjoint(names)), _COUNTS[0])
    prompt_tokens = 0 if _is_another_choice(body) else int(told.get(prompt) or 0)
    return prompt_tokens, int(told.get(text) or 0)


def _is_another_choice(body: dict[str, Any]) -> bool:
    """Whether an answer's prompt is told by an answer before it."""
    match body:
        case {"index": int(index), "generation_settings": {"n_cmpl": int(n_choices)}} if n_choices > 0:
            return index % n_choices > 0
    return False
