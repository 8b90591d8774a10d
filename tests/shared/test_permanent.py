from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from shared.permanent import permanent

START = """
import gc, runpy, sys
sys.argv = [sys.argv[0], *sys.argv[2:]]
try:
    runpy.run_module({module!r}, run_name="__main__")
except SystemExit as left:
    assert not left.code, left.code
print(gc.get_freeze_count(), gc.isenabled())
"""


def test_what_is_made_in_it_is_not_looked_at_again() -> None:
    with permanent():
        made: list[object] = []
        assert not gc.isenabled()
    try:
        assert gc.isenabled()
        assert not any(each is made for each in gc.get_objects())
    finally:
        gc.unfreeze()


def test_the_collector_is_there_again_when_something_fails_to_load() -> None:
    with pytest.raises(ImportError), permanent():
        raise ImportError("gone")
    assert gc.isenabled()
    gc.unfreeze()


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("api", "--help"), ("api.tasks", "--help"), ("worker", "--help"), ("api.cli", "jobs --help")],
)
def test_a_process_keeps_its_modules_from_the_collector(module: str, arguments: str) -> None:
    command = [sys.executable, "-c", START.format(module=module), "-", *arguments.split()]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    count, is_enabled = said.split("\n")[-2].split()
    assert int(count) > 30_000
    assert is_enabled == "True"
