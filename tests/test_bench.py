"""The benchmarks still fit what they measure, and their checks can say no."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from bench import gap, queue
from bench.takeover import Follower

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param("queue --only slotstream --jobs 64 --rounds 1", "no-op jobs through", marks=pytest.mark.slow),
        pytest.param("append --pipelines 2 --rounds 1", "of the bare speed", marks=pytest.mark.slow),
        pytest.param(
            "webhooks --deliveries 20 --endpoints 2 --hanging 1 --ends 2", "deliveries to", marks=pytest.mark.slow
        ),
        pytest.param("prefix --tiny --groups 2", "of the ideal", marks=pytest.mark.slow),
        pytest.param("embeddings --tokens 256 --rounds 1 --type F32", "inputs/s", marks=pytest.mark.slow),
    ],
)
def test_a_measurement_runs_alone(arguments: str, told: str) -> None:
    command = [sys.executable, "-m", "bench", *arguments.split()]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert told in ran.stdout, ran.stderr


def test_our_speed_is_told_beside_the_fastest_other_queue_of_each_round() -> None:
    def turns(*speeds: float) -> list[queue.Turn]:
        return [queue.Turn(speed, 100, 100) for speed in speeds]

    report = queue.report(
        {"slotstream": turns(600, 800), "arq": turns(100, 200), "saq": turns(200, 100), "taskiq": []},
        {"taskiq": "not installed: no such version"},
    )
    assert "3.5 times the fastest other one (3.0 to 4.0, 2 rounds)" in report
    assert "taskiq" in report and "not installed: no such version" in report


STREAM = [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize(
    ("heard", "attempts", "fault"),
    [
        (STREAM, 2, None),
        ([STREAM[0], STREAM[2]], 2, "lost or doubled an event"),
        ([STREAM[0], STREAM[0], *STREAM[1:]], 2, "lost or doubled an event"),
        ([STREAM[0], (2, "x"), STREAM[2]], 2, "said something else than its result"),
        (STREAM, 1, "was attempted 1 times"),
    ],
)
async def test_a_stream_that_lost_or_doubled_anything_is_found_out(
    heard: list[tuple[int, str]], attempts: int, fault: str | None
) -> None:
    async with aiohttp.ClientSession() as http:
        follower = Follower(http, "job", n_tokens=3)
    for at, (number, text) in enumerate(heard):
        for line in (f"id: {number}", "event: token", f"data: {json.dumps({'text': text})}", ""):
            follower.hear(line, float(at))
    result = {"content": "abc", "tokens_predicted": 3, "timings": {"prompt_ms": 0.0}}
    ended = {"status": "succeeded", "attempts": attempts, "result": result}
    for line in ("id: 4", "event: succeeded", f"data: {json.dumps(ended)}"):
        follower.hear(line, 9.0)
    faults = follower.seen(0.5).faults
    assert faults == [] if fault is None else fault in faults


def test_a_gap_is_told_beside_the_native_samplers_of_its_own_turn() -> None:
    turns = {"native": [10.0, 20.0, 10.0], "greedy": [1.0, 2.0, 9.0], "default": [5.0, 30.0, 5.0]}
    greedy, default = gap.report(turns, n_slots=64).split("\n")[2:]
    assert greedy.split()[-4:] == ["9.00", "0.10", "<=", "2"]
    assert "5.00 to 30.00" in default
    assert default.split()[-3] == "0.50"
