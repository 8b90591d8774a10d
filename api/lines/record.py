"""What is recorded of a line, and what a record tells of it. Knows no file and no batch."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from api.schemas.strict import to_json

LONGEST_REASON = 200

PREFIX = "batch_req_"
"""Of a record's id."""


class Outcome(NamedTuple):
    """What a record counts for."""

    is_failed: bool
    prompt_tokens: int
    generated_tokens: int


class Failure(NamedTuple):
    """Why a line failed, for people: one short line of text."""

    custom_id: str | None
    reason: str


class Subject(NamedTuple):
    """The line that a record is of."""

    identity: str
    """Of the record: no other line has it, and the same line always does."""
    number: int
    """Line in the file, from 1."""
    custom_id: str | None
    """None of a line that has none that could be read."""


def answered(line: Subject, *, status: int, request_id: str | None, body: bytes) -> bytes:
    """The record of a line that got an HTTP answer, good or bad, whose JSON is `body`."""
    head = to_json({"status_code": status, "request_id": request_id})
    response = b"".join((head[:-1], b',"body":', body, b"}"))
    return _record(line, response, b"null", is_failed=status != 200)


def unanswered(line: Subject, *, code: str, message: str) -> bytes:
    """The record of a line without an answer: it could not be asked, or its job was cancelled, or has gone."""
    error = to_json({"code": code, "message": message, "line": line.number})
    return _record(line, b"null", error, is_failed=True)


def _record(line: Subject, response: bytes, error: bytes, *, is_failed: bool) -> bytes:
    head = to_json({"id": f"{PREFIX}{line.identity}", "custom_id": line.custom_id})
    number = b',"line":%d' % line.number if is_failed else b""
    return b"".join((head[:-1], b',"response":', response, b',"error":', error, number, b"}"))


def outcome_of(record: bytes) -> Outcome:
    """What a record counts for. ValueError when it is no record of ours."""
    return outcome_in(json.loads(record))


def outcome_in(content: Any) -> Outcome:
    """The same of a record's JSON."""
    if not isinstance(content, dict) or not str(content.get("id", "")).startswith(PREFIX):
        raise ValueError("not a record")
    response = content.get("response")
    if not isinstance(response, dict):
        return Outcome(True, 0, 0)
    body = response.get("body")
    is_failed = response.get("status_code") != 200
    answers = body if isinstance(body, list) else [body]
    counts = [_tokens(answer) for answer in answers if isinstance(answer, dict)]
    return Outcome(is_failed, sum(prompt for prompt, _ in counts), sum(made for _, made in counts))


def line_of(record: bytes) -> int:
    """The line in the file of a record of ours of a line that failed: its last member, so that the rest, which may be
    long, need not be read."""
    return int(record[record.rindex(b":") + 1 : record.rindex(b"}")])


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
