from __future__ import annotations

from pathlib import Path

import pytest

from api.cli.batchfile import BadInput, fingerprint, survey
from api.lines.reading import read_lines
from tests.api.lines.test_reading import GOOD, line


def test_what_is_appended_after_the_survey_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(GOOD + b"\n")
    found = survey(path)
    with path.open("ab") as file:
        file.write(line(custom_id="late") + b"\n")
    assert len(list(read_lines(path, limit=found.n_bytes))) == found.n_lines == 1
    assert fingerprint(path, limit=found.n_bytes) == (found.n_bytes, found.sha256)
    assert fingerprint(path)[1] != found.sha256


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
