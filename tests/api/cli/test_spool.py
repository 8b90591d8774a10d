from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.cli import spool
from api.cli.spool import ForeignPart, Ledger


def record(index: int, *, is_failed: bool = False) -> bytes:
    response = None if is_failed else {"status_code": 200, "body": {"usage": {"completion_tokens": 2}}}
    content = {"id": f"batch_req_{index}", "custom_id": str(index), "response": response, "error": None}
    return json.dumps(content).encode()


def ledger(folder: Path, n_lines: int = 10) -> Ledger:
    return Ledger(folder / "out.part", folder / "spool", n_lines=n_lines)


def written(folder: Path, name: str = "out.part") -> list[int]:
    return [int(json.loads(line)["custom_id"]) for line in (folder / name).read_bytes().splitlines()]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_records_come_out_in_order_whatever_order_they_come_in(tmp_path: Path, order: list[int]) -> None:
    with ledger(tmp_path, 4) as book:
        for n, index in enumerate(order):
            book.put(index, record(index))
            assert written(tmp_path) == list(range(book.n_written))
            assert all(book.has(i) == (i in order[: n + 1]) for i in range(4))
        assert book.is_complete
        book.publish(tmp_path / "out")
    assert written(tmp_path, "out") == [0, 1, 2, 3]


def test_a_second_record_of_a_line_is_dropped(tmp_path: Path) -> None:
    with ledger(tmp_path) as book:
        for index in (0, 0, 2, 2, 1, 2, 0):
            book.put(index, record(index))
        assert book.tally.done == 3
    assert written(tmp_path) == [0, 1, 2]


@given(st.permutations(range(8)), st.integers(0, 8), st.integers(0, 120), st.integers(0, 120))
def test_whatever_a_crash_cuts_off_only_those_lines_are_asked_again(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], n_put: int, cut_part: int, cut_spool: int
) -> None:
    folder = tmp_path_factory.mktemp("crash")
    with ledger(folder, 8) as book:
        for index in order[:n_put]:
            book.put(index, record(index, is_failed=index % 3 == 0))
    for name, cut in (("out.part", cut_part), ("spool", cut_spool)):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: max(0, len(content) - cut)])
    with ledger(folder, 8) as book:
        assert set(written(folder)) == set(range(book.n_written))
        missing = [index for index in range(8) if not book.has(index)]
        assert set(missing) >= set(order[n_put:])
        if not cut_part and not cut_spool:
            assert set(missing) == set(order[n_put:])
        for index in missing:
            book.put(index, record(index, is_failed=index % 3 == 0))
        assert book.is_complete
        assert (book.tally.done, book.tally.failed, book.tally.generated_tokens) == (8, 3, 10)
    assert written(folder) == list(range(8))


def test_a_record_is_cut_where_it_turns_to_garbage(tmp_path: Path) -> None:
    (tmp_path / "out.part").write_bytes(record(0) + b"\n" + b"\0" * 40 + b"\n" + record(2) + b"\n")
    (tmp_path / "spool").write_bytes(b'{"line":5,"record":' + record(5) + b'}\n{"line":"x"}\n')
    with ledger(tmp_path) as book:
        assert [index for index in range(10) if book.has(index)] == [0, 5]
    assert written(tmp_path) == [0]


def test_a_part_with_more_records_than_lines_is_foreign_and_left_alone(tmp_path: Path) -> None:
    content = b"".join(record(index) + b"\n" for index in range(3))
    (tmp_path / "out.part").write_bytes(content)
    with pytest.raises(ForeignPart), ledger(tmp_path, 2):
        pass
    assert (tmp_path / "out.part").read_bytes() == content


@pytest.mark.parametrize("order", list(itertools.permutations(range(5))))
def test_the_first_three_lines_that_failed_are_remembered_also_after_a_restart(
    tmp_path: Path, order: list[int]
) -> None:
    for half in (order[:3], order[3:]):
        with ledger(tmp_path, 6) as book:
            for index in half:
                book.put(index, record(index, is_failed=index != 1))
    assert [(index, failure.custom_id) for index, failure in book.tally.failures.items()] == [
        (0, "0"),
        (2, "2"),
        (3, "3"),
    ]
    assert book.tally.failed == 4


def test_an_emptied_spool_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "SPOOL_KEEP_BYTES", 1000)
    largest = 0
    with ledger(tmp_path, 400) as book:
        for index in range(0, 400, 2):
            book.put(index + 1, record(index + 1))
            book.put(index, record(index))
            largest = max(largest, (tmp_path / "spool").stat().st_size)
    assert written(tmp_path) == list(range(400))
    assert largest < 2000


async def test_sync_may_run_at_any_time(tmp_path: Path) -> None:
    with ledger(tmp_path) as book:
        await book.sync()
        book.put(1, record(1))
        await book.sync()
