"""Logs are lines of JSON unless a person looks on, and never hold a secret."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

PROGRAM = """
import logging, structlog
from pydantic import SecretStr
from shared import telemetry
telemetry.configure({level!r}, {format!r}, "worker")
log = structlog.get_logger("a.module")
log.debug("unseen")
log.info("claimed", job_id="job_0_a", redis_url=SecretStr("redis://:hunter2@host"), password="hunter2")
logging.getLogger("uvicorn").warning("from %s", "elsewhere")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
"""


def logged(level: str, format_: str) -> list[str]:
    program = PROGRAM.format(level=level, format=format_)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "hunter2" not in done.stderr
    return done.stderr.splitlines()


def test_json_lines_carry_level_time_role_and_fields() -> None:
    lines = [json.loads(line) for line in logged("info", "auto")]
    assert [line["event"] for line in lines] == ["claimed", "from elsewhere", "failed"]
    assert {line["role"] for line in lines} == {"worker"}
    assert [line["level"] for line in lines] == ["info", "warning", "error"]
    assert all(line["timestamp"].endswith("Z") for line in lines)
    assert lines[0]["job_id"] == "job_0_a"
    assert "ZeroDivisionError" in lines[2]["exception"]


def test_the_level_is_the_least_that_is_shown() -> None:
    assert [json.loads(line)["event"] for line in logged("error", "json")] == ["failed"]


def test_a_console_gets_lines_for_people() -> None:
    lines = logged("warning", "console")
    assert "from elsewhere" in lines[0]
    with pytest.raises(json.JSONDecodeError):
        json.loads(lines[0])


def test_levels_are_those_of_the_settings() -> None:
    names = logging.getLevelNamesMapping()
    assert {"DEBUG", "INFO", "WARNING", "ERROR"} <= set(names)
