"""Which line of the input a record is of, whoever wrote it. Knows no file and no service."""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from api.lines.reading import BadLine, Line
from api.lines.record import PREFIX, Outcome, Subject, answered, outcome_in, unanswered
from api.schemas.strict import to_json


@dataclass(frozen=True, slots=True)
class Placed:
    """A record, and the line that it is of."""

    index: int
    record: bytes
    outcome: Outcome


class Places:
    """Of lines that were asked, each with a `custom_id` of its own: some 150 bytes for each."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._ordinals: dict[bytes, int] = {}
        self._indexes, self._numbers = array("Q"), array("Q")

    def __len__(self) -> int:
        return len(self._indexes)

    def add(self, line: Line) -> None:
        """In the order of the file."""
        self._ordinals[_mark(line.custom_id)] = len(self._indexes)
        self._indexes.append(line.index)
        self._numbers.append(line.number)

    def place(self, text: bytes) -> Placed | None:
        """None for what is no record, or of no line that was asked.

        A record stays as it is, to the byte, unless it lacks what ours have: such an id, and a failure's line.
        """
        try:
            content = json.loads(text)
            ordinal = self._ordinal(content)
            if ordinal is None:
                return None
            record = text if _is_ours(content) else self._rewritten(content, self._numbers[ordinal])
            outcome = outcome_in(content if record is text else json.loads(record))
        except (ValueError, TypeError, RecursionError):
            return None
        return Placed(self._indexes[ordinal], record, outcome)

    def _ordinal(self, content: Any) -> int | None:
        if not isinstance(content, dict):
            return None
        custom_id, number = content.get("custom_id"), content.get("line")
        if isinstance(custom_id, str):
            return self._ordinals.get(_mark(custom_id))
        if not isinstance(number, int) or number < 0:
            return None
        ordinal = bisect_left(self._numbers, number)
        return ordinal if ordinal < len(self._numbers) and self._numbers[ordinal] == number else None

    def _rewritten(self, content: dict[str, Any], number: int) -> bytes:
        subject = subject_of(self._run_id, number, content.get("custom_id"))
        response, error = content.get("response"), content.get("error")
        if isinstance(response, dict):
            status, body = int(response.get("status_code") or 0), _written(response.get("body"))
            return answered(subject, status=status, request_id=response.get("request_id"), body=body)
        fault = error if isinstance(error, dict) else {}
        code, message = fault.get("code"), fault.get("message")
        return unanswered(subject, code=str(code or "no_answer"), message=str(message or "no answer came"))


def subject_of(run_id: str, number: int, custom_id: str | None) -> Subject:
    """Of a record that is written here: of a line that could not be asked, or got none from a service."""
    identity = hashlib.sha256(f"{run_id}\n{number}".encode()).hexdigest()[:24]
    return Subject(identity, number, custom_id)


def refused(run_id: str, line: BadLine) -> bytes:
    """The record of a line that could not be asked."""
    return unanswered(subject_of(run_id, line.number, line.custom_id), code=line.code, message=line.message)


def _is_ours(content: dict[str, Any]) -> bool:
    """Whether it has all that is promised of a record."""
    response = content.get("response")
    is_good = isinstance(response, dict) and response.get("status_code") == 200
    return str(content.get("id", "")).startswith(PREFIX) and (is_good or isinstance(content.get("line"), int))


def _mark(custom_id: str) -> bytes:
    return hashlib.blake2b(custom_id.encode(errors="surrogatepass"), digest_size=16).digest()


def _written(body: Any) -> bytes:
    """The JSON of an answer. It may have half a surrogate pair in it, out of an echoed request."""
    try:
        return to_json(body)
    except UnicodeEncodeError:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
