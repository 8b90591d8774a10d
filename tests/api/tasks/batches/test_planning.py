"""What becomes of a file: which lines are planned, and what is said of the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from api.tasks.batches.plan import read_plan_text
from api.tasks.batches.planning import Planned, Rules, plan_again, plan_file
from shared.batches import ANY_ENDPOINT, MAX_FAULTS
from tests.api.tasks.batches.conftest import jsonl, say

BATCH = "batch_0_" + "0" * 24


class Result(NamedTuple):
    planned: Planned
    lines: list[int]
    """Numbers of those in the plan."""
    records: list[dict[str, Any]]


def planned(folder: Path, content: bytes, **rules: Any) -> Result:
    given: dict[str, Any] = {"endpoint": ANY_ENDPOINT, "max_line": 32_000_000, "max_lines": 1000}
    paths = [folder / name for name in ("source", "plan", "errors")]
    paths[0].write_bytes(content)
    with paths[0].open("rb") as source, paths[1].open("wb") as plan, paths[2].open("wb") as errors:
        found = plan_file(source, plan, errors, Rules(batch_id=BATCH, **given | rules))
    return Result(
        found,
        [read_plan_text(text).number for text in paths[1].read_bytes().splitlines()],
        [json.loads(text) for text in paths[2].read_bytes().splitlines()],
    )


def request(custom_id: str, body: bytes = b'{"prompt":"x"}') -> bytes:
    return b'{"custom_id":"%b","url":"/completion","body":%b}' % (custom_id.encode(), body)


NESTED = b"[" * 70 + b"]" * 70


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (request("bad", b'{"prompt":"a\\ud800b"}'), "invalid_json"),
        (request("bad", b'{"prompt":"a\xffb"}'), "invalid_json"),
        (request("bad", b'{"prompt":"a","seed":NaN}'), "invalid_json"),
        (request("bad", b'{"prompt":"a","seed":1e999}'), "invalid_json"),
        (request("bad", b'{"prompt":' + NESTED + b"}"), "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"\0\1\2", "invalid_json"),
        (request("bad", b'{"prompt":"' + b"x" * 200_000 + b'"}'), "line_too_long"),
        (request("1"), "duplicate_custom_id"),
        (b'{"custom_id":"\\ud800"}', "invalid_json"),
        (b"[]", "invalid_line"),
    ],
    ids=range(11),
)
def test_a_bad_line_fails_alone(tmp_path: Path, bad: bytes, code: str) -> None:
    content = b"\n".join([request("1"), bad, request("2")])
    found, lines, records = planned(tmp_path, content, max_line=200_000)
    assert (found.n_total, found.n_planned, lines) == (3, 2, [1, 3])
    [record] = records
    [fault] = found.faults
    assert (record["error"]["code"], record["error"]["line"], record["line"], record["response"]) == (code, 2, 2, None)
    assert (fault.code, fault.line, fault.message) == (code, 2, record["error"]["message"])
    assert found.error_bytes == (tmp_path / "errors").stat().st_size
    assert found.plan_bytes == (tmp_path / "plan").stat().st_size


def test_a_file_is_read_whatever_its_line_ends_are(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf\r\n" + request("1") + b"\r\n\n \t\r\n" + request("2") + b"\n\r\n" + request("3")
    found, lines, records = planned(tmp_path, content)
    assert (found.n_total, lines, records) == (3, [2, 5, 7], [])


def test_a_line_of_30_mb_is_planned(tmp_path: Path) -> None:
    content = b"\n".join([request("1"), request("2", b'{"prompt":"' + b"x" * 30_000_000 + b'"}'), request("3")])
    found, lines, _ = planned(tmp_path, content)
    assert (found.n_planned, sorted(lines)) == (3, [1, 2, 3])


def test_a_plan_has_the_lines_as_they_were_in_the_order_of_their_beginnings(tmp_path: Path) -> None:
    asks = [say(str(n), f"say {'ab'[n % 2] * 100}|{n}", odd=1.0e1) for n in range(6)]
    found, lines, _ = planned(tmp_path, jsonl(asks))
    assert lines == [1, 3, 5, 2, 4, 6]
    texts = (tmp_path / "plan").read_bytes().splitlines()
    source = jsonl(asks).splitlines()
    assert texts == [b'{"line":%d,"request":%b}' % (n, source[n - 1]) for n in lines]
    assert found.model is None


@pytest.mark.parametrize(
    ("models", "model"),
    [(["m", "m"], "m"), (["m", "n"], None), (["m", None], None), ([7], None), (["m" * 257], None)],
)
def test_a_batch_has_the_model_that_all_of_its_lines_name(tmp_path: Path, models: list[Any], model: str | None) -> None:
    asks = [say(str(n), **({} if name is None else {"model": name})) for n, name in enumerate(models)]
    assert planned(tmp_path, jsonl(asks)).planned.model == model


@pytest.mark.parametrize(
    ("content", "codes"),
    [
        (b"", ["empty_file"]),
        (b"\n \r\n\n", ["empty_file"]),
        (b"name,age\nx,1\n", ["no_valid_lines", "invalid_json", "invalid_json"]),
        (bytes(range(256)), ["not_text", "invalid_json", "invalid_json"]),
        ("é".encode("latin-1") * 9, ["not_text", "invalid_json"]),
        (("x" * 65_535 + "é").encode(), ["no_valid_lines", "invalid_json"]),
        (b"{}\n[]\n", ["no_valid_lines", "missing_custom_id", "invalid_line"]),
        (b"\n".join(request(str(n)) for n in range(1001)), ["too_many_lines"]),
    ],
)
def test_a_file_that_cannot_be_run_says_why_and_what_is_wrong_with_its_lines(
    tmp_path: Path, content: bytes, codes: list[str]
) -> None:
    found, lines, _ = planned(tmp_path, content)
    assert (found.n_planned, lines) == (0, [])
    assert [fault.code for fault in found.faults] == codes
    assert found.faults[0].line is None


def test_so_many_bad_lines_are_listed_and_all_have_a_record(tmp_path: Path) -> None:
    content = b"x\n" * 2500 + request("1")
    found, _, records = planned(tmp_path, content, max_lines=3000)
    assert (found.n_total, found.n_planned, len(found.faults), len(records)) == (2501, 1, MAX_FAULTS, 2500)
    assert len({record["id"] for record in records}) == 2500


def test_a_process_of_its_own_comes_to_the_same(tmp_path: Path) -> None:
    content = jsonl([say(str(n), f"say {'ab'[n % 2] * 100}") for n in range(20)]) + b"x\n"
    here = planned(tmp_path, content)
    plan, errors = (tmp_path / "plan").read_bytes(), (tmp_path / "errors").read_bytes()
    rules = Rules(batch_id=BATCH, endpoint=ANY_ENDPOINT, max_line=32_000_000, max_lines=1000)
    with (
        (tmp_path / "source").open("rb") as source,
        (tmp_path / "plan").open("wb") as good,
        (tmp_path / "errors").open("wb") as bad,
    ):
        descriptors = [file.fileno() for file in (source, good, bad)]
        command = [sys.executable, "-m", "api.tasks.batches.planning", *map(str, descriptors), rules.to_json()]
        said = subprocess.run(command, pass_fds=descriptors, capture_output=True, timeout=30, check=True).stdout
    assert Planned.from_json(said) == here.planned
    assert ((tmp_path / "plan").read_bytes(), (tmp_path / "errors").read_bytes()) == (plan, errors)


def test_a_plan_is_made_of_some_lines_of_another(tmp_path: Path) -> None:
    planned(tmp_path, jsonl([say(str(n)) for n in range(1, 13)]))
    before = (tmp_path / "plan").read_bytes().splitlines()
    with (tmp_path / "plan").open("rb") as source, (tmp_path / "again").open("wb") as again:
        found = plan_again(source, again, {2, 11, 40}, "m")
    assert (tmp_path / "again").read_bytes().splitlines() == [before[1], before[10]]
    assert (found.n_total, found.n_planned, found.model) == (2, 2, "m")
    with (tmp_path / "plan").open("rb") as source, (tmp_path / "again").open("wb") as again:
        assert plan_again(source, again, set(), None).faults[0].code == "nothing_to_retry"
