"""The process itself: its one line, its stops, its refusals."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.api.conftest import RedisProcess

COMMAND = [sys.executable, "-m", "api"]


def environment(url: str, **more: str) -> dict[str, str]:
    return os.environ | {"SLOTSTREAM_REDIS_URL": url, "SLOTSTREAM_PORT": "0"} | more


@contextmanager
def started(url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address, from the one line that it prints."""
    process = subprocess.Popen(COMMAND, env=environment(url), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        line = process.stdout.readline()
        found = re.fullmatch(r"slotstream api: listening on (http://127\.0\.0\.1:\d+)\n", line)
        assert found, line
        yield process, found[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def test_it_says_where_it_listens_and_stops_with_zero(redis_process: RedisProcess) -> None:
    with started(redis_process.url) as (_, url):
        assert httpx.get(f"{url}/ready").status_code == 200


def test_it_starts_without_redis_and_says_so() -> None:
    with started("unix:///nowhere/at/all") as (_, url):
        assert httpx.get(f"{url}/live").status_code == 200
        assert httpx.get(f"{url}/ready").status_code == 503


def test_a_taken_port_is_one_sentence(redis_process: RedisProcess) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refusal = subprocess.run(
            [*COMMAND, "--port", port],
            env=environment(redis_process.url),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert refusal.returncode == 2
    assert refusal.stderr == (
        f"slotstream api: cannot listen on 127.0.0.1 port {port}: Address already in use (see --port)\n"
    )


def test_a_url_that_is_none_is_one_sentence() -> None:
    refusal = subprocess.run(
        COMMAND, env=environment("http://x"), capture_output=True, text=True, timeout=30, check=False
    )
    assert refusal.returncode == 2
    assert refusal.stderr.startswith("slotstream api: SLOTSTREAM_REDIS_URL: ")
    assert refusal.stderr.count("\n") == 1
