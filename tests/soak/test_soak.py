"""A short soak finds nothing, and what it looks with can say no."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.soak.answers import faults_of, faults_of_job, faults_of_stream
from tests.soak.errands import KINDS, Errand, Way, draw
from tests.soak.gauges import growth_of

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_some_seconds_of_everything_leave_nothing_wrong() -> None:
    command = [sys.executable, "-m", "tests.soak", "--minutes", "0.04", "--seed", "1", "--clients", "8"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
    assert "0 things were wrong" in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode == 0


def test_memory_that_grows_is_told_from_memory_that_settles() -> None:
    noise = random.Random(3)
    settles = [(second, 100 + 30 * min(1.0, second / 100) + noise.uniform(-1, 1)) for second in range(600)]
    grows = [(second, size + 0.04 * second) for second, size in settles]
    assert growth_of("settles", settles).is_flat
    grown = growth_of("grows", grows)
    assert not grown.is_flat
    assert 15 < grown.gained_mb < 18
    assert growth_of("has only begun", [(second / 10, size) for second, size in enumerate(range(100, 200, 4))]).is_flat


def completion(**more: Any) -> dict[str, Any]:
    timings = {"cache_n": 2, "prompt_n": 1, "prompt_ms": 1.0}
    return {
        "index": 0,
        "content": "abc",
        "tokens_predicted": 3,
        "tokens_evaluated": 3,
        "stop_type": "limit",
        "truncated": False,
        "stop": True,
        "timings": timings,
    } | more


ASKED: dict[str, Any] = {"prompt": [1, 2, 3], "n_predict": 3, "ignore_eos": True}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, {"tokens_predicted": 4}),
        ({}, {"tokens_predicted": 2}),
        ({}, {"tokens_evaluated": 4}),
        ({}, {"timings": {"cache_n": 2, "prompt_n": 1, "prompt_ms": float("inf")}}),
        ({}, {"index": 1}),
        ({"stop": ["b"]}, {}),
        ({"n": 2}, {}),
        ({"grammar": 'root ::= "abd"'}, {}),
        ({"grammar": 'root ::= "abcd"'}, {"stop_type": "eos"}),
        ({"json_schema": {}}, {"stop_type": "eos", "content": '{"a":1}'}),
        ({"n_probs": 1}, {}),
        ({"shift": True, "n_predict": 9}, {"truncated": True}),
    ],
    ids=str,
)
def test_an_answer_that_is_wrong_is_found_out(asked: dict[str, Any], said: dict[str, Any]) -> None:
    errand = Errand("completion", "/completion", ASKED | asked)
    assert faults_of(Errand("completion", "/completion", ASKED), completion()) == []
    assert faults_of(errand, completion(**said))


def test_a_stream_that_is_wrong_is_found_out() -> None:
    errand = Errand("completion", "/completion", ASKED, Way.STREAM)
    chunk, last = {"content": "abc", "stop": False}, completion(content="")
    assert faults_of_stream(errand, [chunk, last], False) == []
    for events in ([chunk], [last, last], [chunk, {"error": {}}], [chunk, last | {"tokens_predicted": 5}]):
        assert faults_of_stream(errand, events, False)


def test_a_job_that_is_wrong_is_found_out() -> None:
    errand = Errand("completion", "/completion", ASKED, Way.JOB)
    job = {"status": "succeeded", "result": completion()}
    assert faults_of_job(errand, [(1, "ab"), (2, "c")], job) == []
    assert faults_of_job(errand, [(1, "ab"), (3, "c")], job)
    assert faults_of_job(errand, [(1, "ab")], job)
    assert faults_of_job(errand, [], {"status": "failed"})


def test_every_kind_of_errand_is_drawn() -> None:
    dice = random.Random(5)
    drawn = [draw(dice) for _ in range(1000)]
    assert len({errand.kind for errand in drawn}) == len(KINDS)
