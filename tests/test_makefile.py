from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from api.lines.reading import Line, LineChecker, read_lines

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
def test_make_alone_lists_every_target_with_what_it_does() -> None:
    listed = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, timeout=20, check=True).stdout
    for target in ("setup", "demo", "test", "chaos", "soak", "check", "bench", "clean"):
        assert re.search(rf"^  make {target} +\S+", listed, re.MULTILINE), target


def test_a_python_that_is_none_is_refused_not_replaced(tmp_path: Path) -> None:
    setup = [str(ROOT / ".ci" / "setup"), str(tmp_path / "venv")]
    variables = {**os.environ, "PYTHON": "/nope"}
    refused = subprocess.run(setup, env=variables, capture_output=True, text=True, timeout=30, check=False)
    assert refused.returncode == 1
    assert refused.stderr == "setup: /nope is not a Python 3.11 or newer\n"
    assert not (tmp_path / "venv").exists()


def test_ctrl_c_ends_the_setup_with_one_line(tmp_path: Path) -> None:
    pip = tmp_path / "bin" / "pip"
    pip.parent.mkdir()
    pip.write_text("#!/bin/sh\nexec sleep 60\n")
    pip.chmod(0o755)
    with subprocess.Popen(
        [str(ROOT / ".ci" / "setup"), str(tmp_path)],
        env={**os.environ, "PYTHON": "", "CXX": "true"},  # nothing is compiled here
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as setup:
        try:
            assert setup.stdout is not None
            assert setup.stdout.readline().startswith("installing packages")
            while not (tmp_path / "setup.log").exists():
                time.sleep(0.02)
            os.killpg(setup.pid, signal.SIGINT)  # a terminal tells all of them
            assert setup.communicate(timeout=20)[1] == "setup: stopped; run it again to go on\n"
        finally:
            setup.kill()
    assert setup.returncode == 130


def test_what_is_installed_is_pinned_by_name_and_version_only() -> None:
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line), line


def test_the_pins_agree_with_what_the_package_asks_for() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    pins = (ROOT / "requirements.txt").read_text().lower().replace("_", "-")
    for name, version in re.findall(r'"([a-z-]+)(?:\[[a-z]+\])?==([^"]+)"', project):
        assert f"{name}=={version}\n" in pins


def test_every_line_of_the_example_can_be_run() -> None:
    check = LineChecker()
    lines = [check(line) for line in read_lines(ROOT / "examples" / "prompts.jsonl")]
    assert all(isinstance(line, Line) for line in lines)
    assert {line.url for line in lines if isinstance(line, Line)} >= {
        "/v1/chat/completions",
        "/completion",
        "/v1/embeddings",
    }


def test_the_answers_that_the_demo_shows_are_those_of_the_example(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    with results.open("w") as file:
        for line in (ROOT / "examples" / "prompts.jsonl").read_text().splitlines():
            custom_id = json.loads(line)["custom_id"]
            body = {"choices": [{"message": {"content": f"answer to {custom_id}"}}]}
            record = {"custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}
            file.write(json.dumps(record) + "\n")
    shown = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "show.py"), str(results)],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    ).stdout
    assert "answer to capital-japan" in shown
