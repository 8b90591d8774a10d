from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from api.cli.batchfile import BadInput, idempotency_key, subject_of, survey, written
from api.lines.reading import Line, LineChecker, RawLine, read_lines
from api.lines.record import answered
from tests.api.lines.test_reading import GOOD, line


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
        (b"name,age\nx,1\n", "no line that can be run; line 1: the line is not valid JSON"),
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
    keys = [idempotency_key("run", ask) for ask in asks if isinstance(ask, Line)]
    assert keys[0] == keys[1]
    assert len({*keys, idempotency_key("other", asks[0])}) == 4  # type: ignore[arg-type]


def test_half_a_surrogate_pair_in_an_answer_is_still_written() -> None:
    checked = LineChecker()(RawLine(0, 1, GOOD))
    assert isinstance(checked, Line)
    body: Any = {"error": {"message": "\ud800"}}
    record = answered(subject_of(checked, "k"), status=400, request_id=None, body=written(body))
    assert json.loads(record)["response"]["body"] == body
