from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from api.cli import batchfile
from api.cli.batchfile import (
    Ask,
    BadInput,
    BadLine,
    Failure,
    LineChecker,
    Outcome,
    RawLine,
    answered,
    failure_of,
    idempotency_key,
    outcome_of,
    read_lines,
    refused,
    survey,
    unanswered,
)
from api.schemas.dialect import ENDPOINTS


def line(**changes: Any) -> bytes:
    content = {"custom_id": "a", "method": "POST", "url": "/completion", "body": {"prompt": "x"}}
    return json.dumps({key: value for key, value in (content | changes).items() if value is not ...}).encode()


GOOD = line()


def check(text: bytes | None) -> Ask | BadLine:
    return LineChecker()(RawLine(0, 1, text))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"{", "invalid_json"),
        (b"hello", "invalid_json"),
        (b'{"custom_id": "a", "body": NaN}', "invalid_json"),
        (b'{"custom_id": "a", "body": Infinity}', "invalid_json"),
        (b"\xff\xfe{}", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"n": ' + b"9" * 5000 + b"}", "invalid_json"),
        (None, "line_too_long"),
        (b"[]", "invalid_line"),
        (b'"text"', "invalid_line"),
        (b"null", "invalid_line"),
        (line(custom_id=...), "missing_custom_id"),
        (line(custom_id=7), "missing_custom_id"),
        (line(custom_id=""), "missing_custom_id"),
        (line(custom_id="\ud800"), "invalid_custom_id"),
        (line(method="GET"), "invalid_method"),
        (line(url=...), "invalid_url"),
        (line(url="/v1/files"), "invalid_url"),
        (line(url=["/completion"]), "invalid_url"),
        (line(body=...), "invalid_body"),
        (line(body=[1]), "invalid_body"),
        (line(body="text"), "invalid_body"),
        (line(body={"stream": True}), "stream_not_supported"),
    ],
)
def test_a_line_that_cannot_be_asked_says_why(text: bytes | None, code: str) -> None:
    bad = check(text)
    assert isinstance(bad, BadLine)
    assert bad.code == code


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        line(method=...),
        line(body={"stream": False}),
        line(custom_id="né 🐢"),
        line(url="/v1/embeddings", body={"input": ["a"]}),
        line(extra="is ignored"),
    ],
)
def test_a_line_in_openais_format_can_be_asked(text: bytes) -> None:
    assert isinstance(check(text), Ask)


@pytest.mark.parametrize("url", ["/v1/files", "/v1/moderations", "/tokenize"])
def test_an_unknown_url_is_told_those_that_a_job_can_stand_for(url: str) -> None:
    bad = check(line(url=url))
    assert isinstance(bad, BadLine)
    told = bad.message.partition("cannot be run; ")[2]
    assert re.findall(r"/[a-z0-9/]+", told) == list(ENDPOINTS)


def test_the_first_of_equal_custom_ids_runs_and_the_later_ones_are_errors() -> None:
    checker = LineChecker()
    first, second, other = (
        checker(RawLine(n, n + 1, text))
        for n, text in enumerate([GOOD, line(url="/v1/embeddings"), line(custom_id="b")])
    )
    assert isinstance(first, Ask)
    assert isinstance(second, BadLine)
    assert (second.code, second.custom_id, second.number) == ("duplicate_custom_id", "a", 2)
    assert isinstance(other, Ask)


def test_blank_lines_have_no_record_but_count_as_lines_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n\n  \t\r\n" + b"x\n\n" + GOOD)
    assert [(item.index, item.number, item.text) for item in read_lines(path)] == [
        (0, 1, GOOD),
        (1, 4, b"x"),
        (2, 6, GOOD),
    ]


def test_a_line_beyond_the_limit_is_skipped_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batchfile, "MAX_LINE_BYTES", 200)
    path = tmp_path / "in.jsonl"
    for long in (b"x" * 5000, b"x" * 200, b"x" * 201):
        path.write_bytes(long + b"\n" + GOOD + b"\n" + long)
        assert [item.text for item in read_lines(path)] == [None, GOOD, None]
    path.write_bytes(b"x" * 199 + b"\n" + GOOD)
    assert [item.text for item in read_lines(path)] == [b"x" * 199, GOOD]


def test_what_is_appended_after_the_survey_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(GOOD + b"\n")
    found = survey(path)
    with path.open("ab") as file:
        file.write(line(custom_id="late") + b"\n")
    assert len(list(read_lines(path, limit=found.n_bytes))) == found.n_lines == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"\n \n\n", "is empty"),
        (b"name,age\nx,1\n", "no line that can be run; line 1: the line is not JSON"),
        (bytes(range(256)) * 300, "no line that can be run"),
        (b"{}\n[]\n", "no line that can be run; line 1: the line has no custom_id"),
    ],
)
def test_a_file_without_a_good_line_is_refused_in_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadInput) as refusal:
        survey(path)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        survey(tmp_path / "nothing.jsonl")
    with pytest.raises(BadInput, match="is a folder"):
        survey(tmp_path)


def test_one_good_line_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"x\ny\n" + GOOD + b"\nz")
    assert survey(path).n_lines == 4


def test_keys_differ_between_runs_lines_and_texts_and_nothing_else() -> None:
    asks = [
        LineChecker()(RawLine(0, number, text))
        for number, text in [(1, GOOD), (1, GOOD), (2, GOOD), (1, line(extra=1))]
    ]
    keys = [idempotency_key("run", ask) for ask in asks if isinstance(ask, Ask)]
    assert keys[0] == keys[1]
    assert len({*keys, idempotency_key("other", asks[0])}) == 4  # type: ignore[arg-type]


def test_records_have_openais_shape() -> None:
    ask = check(line(custom_id="ü"))
    assert isinstance(ask, Ask)
    body = {"usage": {"prompt_tokens": 2, "completion_tokens": 5}}
    good = answered(ask, "k" * 40, status=200, request_id="job_1", body=body)
    assert "ü".encode() in good
    assert json.loads(good) == {
        "id": "batch_req_" + "k" * 24,
        "custom_id": "ü",
        "response": {"status_code": 200, "request_id": "job_1", "body": body},
        "error": None,
    }
    gone = json.loads(unanswered(ask, "k" * 40, code="batch_expired", message="late"))
    assert gone["response"] is None
    assert gone["error"] == {"code": "batch_expired", "message": "late", "line": 1}
    bad = json.loads(refused(BadLine(0, 7, None, "invalid_json", "no"), "run"))
    assert (bad["custom_id"], bad["error"]["line"]) == (None, 7)
    assert bad["id"].startswith("batch_req_")


def test_every_record_of_a_failure_has_its_line_in_the_file() -> None:
    ask = LineChecker()(RawLine(3, 8, GOOD))
    assert isinstance(ask, Ask)
    body = {"error": {"message": "no"}}
    for status in (400, 413, 501, 500):
        record = json.loads(answered(ask, "k", status=status, request_id=None, body=body))
        assert (record["line"], record["error"], record["response"]["status_code"]) == (8, None, status)
    assert json.loads(unanswered(ask, "k", code="gone", message="late"))["line"] == 8
    assert json.loads(refused(BadLine(0, 7, None, "bad", "no"), "run"))["line"] == 7
    assert "line" not in json.loads(answered(ask, "k", status=200, request_id=None, body={}))


def test_half_a_surrogate_pair_in_an_answer_is_still_written() -> None:
    ask = check(GOOD)
    assert isinstance(ask, Ask)
    record = answered(ask, "k", status=400, request_id=None, body={"error": {"message": "\ud800"}})
    assert json.loads(record)["response"]["body"]["error"]["message"] == "\ud800"


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
    ask = check(GOOD)
    assert isinstance(ask, Ask)
    assert outcome_of(answered(ask, "k", status=status, request_id=None, body=body)) == outcome


def test_a_failure_is_one_short_line_whatever_others_wrote() -> None:
    ask = check(line(custom_id="a\x1b[2J\nb"))
    assert isinstance(ask, Ask)

    def told(body: Any) -> Failure:
        return failure_of(answered(ask, "k", status=400, request_id=None, body=body))

    assert told({"error": {"message": "no\n\x1b[31mthing"}}) == ("a [2J b", "no [31mthing")
    assert told({"error": {"message": "x" * 5000}}).reason == "x" * 197 + "..."
    for odd in ({}, None, [], {"error": "no"}, {"error": {"message": None}}):
        assert told(odd).reason == "status 400"
    assert failure_of(unanswered(ask, "k", code="gone", message="late")).reason == "late"
    assert failure_of(refused(BadLine(0, 1, None, "bad", "not JSON"), "run")) == (None, "not JSON")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"id": "x"}', b'{"id": 3}'])
def test_what_is_no_record_counts_for_nothing(text: bytes) -> None:
    with pytest.raises(ValueError):
        outcome_of(text)
