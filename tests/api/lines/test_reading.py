from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from api.lines.reading import BadLine, Line, LineChecker, RawLine, read_lines
from api.schemas.dialect import ENDPOINTS


def line(**changes: Any) -> bytes:
    content = {"custom_id": "a", "method": "POST", "url": "/completion", "body": {"prompt": "x"}}
    return json.dumps({key: value for key, value in (content | changes).items() if value is not ...}).encode()


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else []


GOOD = line()


def check(text: bytes | None) -> Line | BadLine:
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
        (line(custom_id="\ud800"), "invalid_json"),
        (line(body={"prompt": "a\ud800b"}), "invalid_json"),
        (line(body={"prompt": "\ud83d\ude00", "seed": 1e308}).replace(b"1e+308", b"1e400"), "invalid_json"),
        (line(body={"prompt": nested(64)}), "invalid_json"),
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
        line(body={"prompt": "\ud83d\ude00"}),
        line(body={"prompt": nested(62)}),
    ],
)
def test_a_line_in_openais_format_can_be_asked(text: bytes) -> None:
    assert isinstance(check(text), Line)


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
    assert isinstance(first, Line)
    assert isinstance(second, BadLine)
    assert (second.code, second.custom_id, second.number) == ("duplicate_custom_id", "a", 2)
    assert isinstance(other, Line)


def test_blank_lines_have_no_record_but_count_as_lines_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n\n  \t\r\n" + b"x\n\n" + GOOD)
    lines = list(read_lines(path))
    assert [(item.index, item.number, item.text) for item in lines] == [(0, 1, GOOD), (1, 4, b"x"), (2, 6, GOOD)]
    content = path.read_bytes()
    assert all(item.text and content.startswith(item.text, item.offset) for item in lines)


def test_a_line_beyond_the_limit_is_skipped_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    for long in (b"x" * 5000, b"x" * 200, b"x" * 201):
        path.write_bytes(long + b"\n" + GOOD + b"\n" + long)
        lines = list(read_lines(path, longest=200))
        assert [item.text for item in lines] == [None, GOOD, None]
        assert path.read_bytes().startswith(GOOD, lines[1].offset)
    path.write_bytes(b"x" * 199 + b"\n" + GOOD)
    assert [item.text for item in read_lines(path, longest=200)] == [b"x" * 199, GOOD]


def test_a_batch_takes_lines_of_its_endpoint_alone() -> None:
    checker = LineChecker("/completion")
    assert isinstance(checker(RawLine(0, 1, GOOD)), Line)
    for url in ("/v1/completions", "/v1/files"):
        bad = checker(RawLine(1, 2, line(custom_id=url, url=url)))
        assert isinstance(bad, BadLine)
        assert bad.code == "invalid_url"
