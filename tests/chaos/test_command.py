"""What a person sees of a run: where it is, how long it takes, and that Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def test_ctrl_c_is_one_line_and_leaves_logs_and_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--seed", "7", "--server", "valkey"]
    with subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "valkey: seed 7, 2200 orders, about 2 min\n"
            folder = _until_workers_are_there(tmp_path)
            os.killpg(run.pid, signal.SIGINT)  # a terminal tells all of them
            said, complaint = run.communicate(timeout=30)
        finally:
            run.kill()
    assert (run.returncode, said) == (130, "")
    assert complaint == f"stopped; seed 7; logs in {folder}\n"
    assert (folder / "clients.log").exists()
    assert _living(run.pid) == []


def _until_workers_are_there(tmp_path: Path) -> Path:
    give_up_at = time.monotonic() + 30
    while time.monotonic() < give_up_at:
        for journal in tmp_path.glob("chaos-valkey-*/worker-*.journal"):
            return journal.parent
        time.sleep(0.05)
    pytest.fail("no worker came")


def _living(session: int) -> list[str]:
    """Processes of a session that have not ended, a moment after its leader did."""
    living: list[str] = []
    for _ in range(100):
        stats = [stat for path in Path("/proc").glob("[0-9]*/stat") if (stat := _read(path))]
        living = [stat for stat in stats if _is_living_in(session, stat)]
        if not living:
            break
        time.sleep(0.05)
    return living


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):  # it has ended
        return path.read_text()
    return ""


def _is_living_in(session: int, stat: str) -> bool:
    state, _, _, its_session, *_ = stat.rpartition(") ")[2].split()
    return state != "Z" and int(its_session) == session
