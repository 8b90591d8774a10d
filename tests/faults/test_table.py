"""docs/faults.md names its tests, and they are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [line for line in (ROOT / "docs/faults.md").read_text().split("\n") if line.startswith("|")]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", "\n".join(ROWS))))
CASES = ["C13", "C23", "C24", "C32", "C54", *(f"C15 ({x})" for x in "abcdef"), *(f"C23 ({x})" for x in "abcd")]
CASES += [f"C31 ({x})" for x in "abcd"]


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions)


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_every_test_that_is_named_is_there(file: str, name: str) -> None:
    assert name.startswith("test_") and name in functions_of(file)


def test_every_fault_and_every_case_has_its_row_and_each_row_a_test() -> None:
    firsts = [row.split("|")[1].strip() for row in ROWS]
    assert [first for first in firsts if first.isdigit()] == [str(number) for number in range(1, 26)]
    assert set(CASES) <= set(firsts)
    for row, first in zip(ROWS, firsts, strict=True):
        if first.isdigit() or first.startswith("C"):
            assert "::test_" in row or first == "case", row
