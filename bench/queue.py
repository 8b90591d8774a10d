"""No-op jobs through enqueue, claim and finish in one process, beside other Python queues on the same server.

All take turns in each round, since the machine's speed drifts: the ratio is taken round by round, to whichever peer was
the fastest in it. The server is the embedded one as it always is, with its append-only file. CPU time is told too:
it says the same on a busy machine as on a quiet one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

import redis

from bench.environments import Missing, interpreter
from bench.table import Column, table
from shared.bus import EmbeddedServer

OURS = "slotstream"
PEERS = ("arq", "saq", "taskiq", "dramatiq")
ROOT = Path(__file__).parents[1]
TURN_TIMEOUT_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=4000, metavar="N", help="jobs in a turn (default: 4000)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each queue (default: 5)")
    parser.add_argument("--only", action="append", choices=(OURS, *PEERS), help="measure this one (may be repeated)")


class Turn(NamedTuple):
    jobs_per_s: float
    client_us: float
    """CPU time of the queue's process for a job."""
    server_us: float
    """CPU time of the server's main thread for a job."""


def measure(given: argparse.Namespace) -> str:
    pythons = {name: interpreter(name) for name in given.only or (OURS, *PEERS)}
    faults = {name: python.reason for name, python in pythons.items() if isinstance(python, Missing)}
    able = {name: python for name, python in pythons.items() if isinstance(python, Path)}
    turns: dict[str, list[Turn]] = {name: [] for name in pythons}
    with tempfile.TemporaryDirectory(prefix="slotstream-bench-") as folder, EmbeddedServer() as server:
        client = redis.Redis.from_url(server.start(Path(folder)))
        for _ in range(given.rounds):
            for name in [name for name in able if name not in faults]:
                try:
                    turns[name].append(_turn(client, server.url or "", name, able[name], given.jobs))
                except subprocess.SubprocessError as error:
                    faults[name] = f"failed: {_last_line(error)}"
        client.close()
    return report(turns, faults)


def _turn(client: redis.Redis, url: str, name: str, python: Path, n_jobs: int) -> Turn:
    client.flushall()
    before = _server_cpu_s(client)
    ran = subprocess.run(
        [python, "-m", f"bench.peers.{name}", url, str(n_jobs)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=TURN_TIMEOUT_S,
    )
    server_s = _server_cpu_s(client) - before
    spent = json.loads(ran.stdout)
    return Turn(n_jobs / spent["wall_s"], spent["cpu_s"] / n_jobs * 1e6, server_s / n_jobs * 1e6)


def _server_cpu_s(client: redis.Redis) -> float:
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user_main_thread"]) + float(cpu["used_cpu_sys_main_thread"])


def _last_line(error: subprocess.SubprocessError) -> str:
    said = getattr(error, "stderr", None) or b""
    lines = (said if isinstance(said, str) else said.decode(errors="replace")).strip().splitlines()
    return lines[-1] if lines else str(error)


def report(turns: dict[str, list[Turn]], faults: dict[str, str]) -> str:
    ratios = _ratios({name: found for name, found in turns.items() if name not in faults})
    rows = [
        (name, faults[name])
        if name in faults
        else (
            name,
            f"{median(turn.jobs_per_s for turn in found):,.0f}",
            f"{min(turn.jobs_per_s for turn in found):,.0f} to {max(turn.jobs_per_s for turn in found):,.0f}",
            f"{median(turn.client_us for turn in found):.0f}",
            f"{median(turn.server_us for turn in found):.0f}",
        )
        for name, found in turns.items()
    ]
    columns = [
        Column("no-op jobs through", is_text=True),
        Column("jobs/s"),
        Column("lowest to highest"),
        Column("µs of the client"),
        Column("µs of the server"),
    ]
    told = table(columns, rows)
    if ratios:
        told += (
            f"\n  {median(ratios):.1f} times the fastest other one"
            f" ({min(ratios):.1f} to {max(ratios):.1f}, {len(ratios)} rounds); the goal is 5"
        )
    return told


def _ratios(turns: dict[str, list[Turn]]) -> list[float]:
    """Our speed to that of the fastest other queue, for each round."""
    if OURS not in turns or len(turns) < 2:
        return []
    rounds = zip(*(found for name, found in turns.items() if name != OURS), strict=True)
    fastest = [max(turn.jobs_per_s for turn in others) for others in rounds]
    return [ours.jobs_per_s / other for ours, other in zip(turns[OURS], fastest, strict=True)]
