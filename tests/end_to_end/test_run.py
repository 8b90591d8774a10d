"""`slotstream run` on a stack of its own: killed half way, run again, complete and in order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

N_LINES = 40


def line(number: int) -> dict[str, Any]:
    if number % 10 == 3:
        return {
            "custom_id": f"l{number}",
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"input": f"word {number}"},
        }
    # The last ones are long: they go on when a test looks how far the others are.
    length = 20 if number < 20 else 150
    body = {"prompt": f"Line {number} says", "max_tokens": length, "seed": number, "ignore_eos": True}
    return {"custom_id": f"l{number}", "method": "POST", "url": "/completion", "body": body}


def write_input(path: Path) -> None:
    lines = [json.dumps(line(number)) for number in range(N_LINES)]
    lines[7] = "{not json"
    lines[11] = json.dumps(line(11) | {"body": {"prompt": [1], "n_predict": "many"}})
    path.write_text("\n".join(lines) + "\n")


def start(folder: Path, model: Path) -> subprocess.Popen[bytes]:
    arguments = [
        "in.jsonl",
        "-o",
        "out.jsonl",
        "-m",
        str(model),
        "-t",
        "1",
        "-np",
        "4",
        "-c",
        "4096",
        "--batch-in-flight",
        "8",
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "api.cli", "run", *arguments],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_run_that_was_stopped_half_way_goes_on_where_it_was(
    how: signal.Signals, tmp_path: Path, model: Path
) -> None:
    write_input(tmp_path / "in.jsonl")
    first = start(tmp_path, model)
    part = tmp_path / "out.jsonl.part"
    async with asyncio.timeout(40):
        while not (part.exists() and part.read_bytes().count(b"\n") >= 5):
            assert first.poll() is None
            await asyncio.sleep(0.02)
    first.send_signal(how)
    await asyncio.to_thread(first.communicate)
    kept = part.read_bytes().splitlines()
    assert 5 <= len(kept) < N_LINES

    again = start(tmp_path, model)
    output, errors = await asyncio.to_thread(again.communicate)
    assert again.returncode == 1, errors.decode()  # two lines are bad
    written = (tmp_path / "out.jsonl").read_bytes().splitlines()
    records = [json.loads(text) for text in written]
    assert written[: len(kept) - 1] == kept[:-1], "what was written stays as it was"
    assert Counter(record["custom_id"] for record in records) == Counter(
        [f"l{number}" for number in range(N_LINES) if number != 7] + [None]
    )
    assert [record["custom_id"] for record in records] == [
        f"l{number}" if number != 7 else None for number in range(N_LINES)
    ]
    assert (records[7]["error"]["code"], records[7]["error"]["line"]) == ("invalid_json", 8)
    assert records[11]["response"]["status_code"] == 400
    assert all(records[n]["response"]["status_code"] == 200 for n in range(N_LINES) if n not in (7, 11))
    assert b"40 lines" in output and b"2 failed" in output
    assert _processes_of(tmp_path) == []


def _processes_of(folder: Path) -> list[str]:
    """Command lines of processes that still have to do with a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in command:
                found.append(command)
    return found
