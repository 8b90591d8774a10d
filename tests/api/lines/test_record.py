from __future__ import annotations

import json
from typing import Any

import pytest

from api.lines.record import Failure, Outcome, Subject, answered, failure_of, outcome_of, unanswered
from api.schemas.strict import to_json


def test_records_have_openais_shape() -> None:
    line = Subject("k" * 24, 1, "ü")
    body = {"usage": {"prompt_tokens": 2, "completion_tokens": 5}}
    good = answered(line, status=200, request_id="job_1", body=to_json(body))
    assert "ü".encode() in good
    assert json.loads(good) == {
        "id": "batch_req_" + "k" * 24,
        "custom_id": "ü",
        "response": {"status_code": 200, "request_id": "job_1", "body": body},
        "error": None,
    }
    gone = json.loads(unanswered(line, code="batch_expired", message="late"))
    assert gone["response"] is None
    assert gone["error"] == {"code": "batch_expired", "message": "late", "line": 1}
    bad = json.loads(unanswered(Subject("k", 7, None), code="invalid_json", message="no"))
    assert (bad["custom_id"], bad["error"]["line"]) == (None, 7)
    assert bad["id"].startswith("batch_req_")


def test_a_record_is_one_line_for_every_reader_of_lines() -> None:
    line, text = Subject("k", 8, "a\u2028b"), "\u0085\u2028\u2029\n"
    for record in (
        answered(line, status=200, request_id=None, body=to_json({"text": text})),
        unanswered(line, code="gone", message=text),
    ):
        assert len(record.decode().splitlines()) == 1
        assert json.loads(record)["custom_id"] == "a\u2028b"


def test_every_record_of_a_failure_has_its_line_in_the_file() -> None:
    line = Subject("k", 8, "a")
    body = {"error": {"message": "no"}}
    for status in (400, 413, 501, 500):
        record = json.loads(answered(line, status=status, request_id=None, body=to_json(body)))
        assert (record["line"], record["error"], record["response"]["status_code"]) == (8, None, status)
    assert json.loads(unanswered(line, code="gone", message="late"))["line"] == 8
    assert "line" not in json.loads(answered(line, status=200, request_id=None, body=b"{}"))


def native(index: int, n_choices: int) -> dict[str, Any]:
    return {
        "index": index,
        "tokens_evaluated": 4,
        "tokens_predicted": 5,
        "generation_settings": {"n_cmpl": n_choices},
    }


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, {"usage": {"prompt_tokens": 2, "completion_tokens": 5}}, Outcome(False, 2, 5)),
        (200, {"usage": {"prompt_tokens": 2, "total_tokens": 2}}, Outcome(False, 2, 0)),
        (200, {"usage": {"input_tokens": 3, "output_tokens": 6, "total_tokens": 9}}, Outcome(False, 3, 6)),
        (200, {"prompt_eval_count": 3, "eval_count": 7, "done": True}, Outcome(False, 3, 7)),
        (200, {"tokens_evaluated": 4, "tokens_predicted": 8}, Outcome(False, 4, 8)),
        (200, [{"tokens_predicted": 8}, {"tokens_predicted": 1}], Outcome(False, 0, 9)),
        (200, [native(0, 2), native(1, 2), native(2, 2), native(3, 2)], Outcome(False, 8, 20)),
        (200, {"usage": None}, Outcome(False, 0, 0)),
        (400, {"error": {"message": "no"}}, Outcome(True, 0, 0)),
    ],
)
def test_what_a_record_counts_for(status: int, body: Any, outcome: Outcome) -> None:
    record = answered(Subject("k", 1, "a"), status=status, request_id=None, body=to_json(body))
    assert outcome_of(record) == outcome


def test_a_failure_is_one_short_line_whatever_others_wrote() -> None:
    line = Subject("k", 1, "a\x1b[2J\nb")

    def told(body: Any) -> Failure:
        return failure_of(answered(line, status=400, request_id=None, body=to_json(body)))

    assert told({"error": {"message": "no\n\x1b[31mthing"}}) == ("a [2J b", "no [31mthing")
    assert told({"error": {"message": "x" * 5000}}).reason == "x" * 197 + "..."
    for odd in ({}, None, [], {"error": "no"}, {"error": {"message": None}}):
        assert told(odd).reason == "status 400"
    assert failure_of(unanswered(line, code="gone", message="late")).reason == "late"
    assert failure_of(unanswered(Subject("k", 1, None), code="bad", message="not JSON")) == (None, "not JSON")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"id": "x"}', b'{"id": 3}'])
def test_what_is_no_record_counts_for_nothing(text: bytes) -> None:
    with pytest.raises(ValueError):
        outcome_of(text)
