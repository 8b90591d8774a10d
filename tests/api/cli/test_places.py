from __future__ import annotations

import json
from typing import Any

import pytest

from api.cli.places import Places
from api.lines.reading import Line
from api.lines.record import Outcome


def places(*numbers: int) -> Places:
    found = Places("run")
    for number in numbers:
        found.add(Line(number * 10, number, f"id-{number}", "/completion", {}, b""))
    return found


def text(**changes: Any) -> bytes:
    response = {"status_code": 200, "request_id": "r", "body": {"usage": {"prompt_tokens": 2, "completion_tokens": 3}}}
    record = {"id": "batch_req_1", "custom_id": "id-2", "response": response, "error": None}
    return json.dumps(record | changes).encode()


FAILED = {"status_code": 400, "request_id": None, "body": {"error": {"message": "no"}}}


def test_a_record_goes_to_the_line_of_its_custom_id_and_stays_as_it_is() -> None:
    placed = places(1, 2, 5).place(text())
    assert placed is not None
    assert (placed.index, placed.record, placed.outcome) == (20, text(), Outcome(False, 2, 3))


def test_a_record_without_a_custom_id_goes_by_its_line() -> None:
    record = text(custom_id=None, response=None, error={"code": "invalid_json", "message": "x"}, line=5)
    placed = places(1, 2, 5).place(record)
    assert placed is not None
    assert (placed.index, placed.record, placed.outcome) == (50, record, Outcome(True, 0, 0))


@pytest.mark.parametrize(
    ("record", "response", "error"),
    [
        (text(id="row-7"), "same", None),
        (text(response=FAILED), FAILED, None),
        (text(response=FAILED, error={"code": "x", "message": "y"}), FAILED, None),
        (text(response=None, error={"code": "gone", "message": "it is"}), None, ("gone", "it is")),
        (text(response=None, error=None), None, ("no_answer", "no answer came")),
        (text(response=None, error="odd"), None, ("no_answer", "no answer came")),
    ],
)
def test_what_others_write_gets_an_id_and_its_line(record: bytes, response: Any, error: Any) -> None:
    placed = places(1, 2, 5).place(record)
    assert placed is not None
    content = json.loads(placed.record)
    assert content["id"].startswith("batch_req_")
    assert content["custom_id"] == "id-2"
    assert content["response"] == (json.loads(record)["response"] if response == "same" else response)
    assert content["error"] == (error and {"code": error[0], "message": error[1], "line": 2})
    assert content.get("line") == (2 if placed.outcome.is_failed else None)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        b"\xff",
        text(custom_id="id-9"),
        text(custom_id=None),
        text(custom_id=None, line=3),
        text(custom_id=None, line=-1),
        text(custom_id=None, line="2"),
        text(custom_id=["id-2"]),
        text(response={"status_code": "odd"}),
        text(response={"status_code": 200, "body": {"usage": {"prompt_tokens": [1]}}}),
    ],
)
def test_what_is_no_record_of_a_line_that_was_asked_has_no_place(record: bytes) -> None:
    assert places(1, 2, 5).place(record) is None


def test_half_a_surrogate_pair_in_an_answer_is_still_written() -> None:
    record = text(response=FAILED | {"body": {"error": {"message": "\ud800"}}})
    placed = places(2).place(record)
    assert placed is not None
    assert json.loads(placed.record)["response"]["body"]["error"]["message"] == "\ud800"
