"""From `kill -9` of a worker to the next token of each of its streams, seen by the clients that follow them.

The whole system runs as processes of its own. In each round one worker has all streams, another stands ready, and the
first is killed. Every stream must go on without a gap and without a repeat, and end as long as it was asked to be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import aiohttp

from api.cli.stack import free_port
from bench.table import Column, table
from shared.bus import EmbeddedServer
from worker.demo import demo_model_path

PATIENCE_S = 120.0
FIRST_TOKENS = 4
"""That every stream has said before the kill."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lease-s", type=float, default=5.0, metavar="S", help="the workers' lease (default: 5)")
    parser.add_argument("--streams", type=int, default=4, metavar="N", help="streams of the killed worker (default: 4)")
    parser.add_argument("--tokens", type=int, default=400, metavar="N", help="tokens of each stream (default: 400)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="kills (default: 3)")
    parser.add_argument(
        "--model", type=Path, default=None, metavar="FILE", help="a GGUF file (default: the demo model)"
    )


class Stream(NamedTuple):
    """What a client saw of one stream."""

    silence_s: float
    """From the kill to the first token after the silence."""
    prefill_s: float
    """Of it: what the other worker computed before it could go on."""
    faults: list[str]


def measure(given: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(prefix="slotstream-bench-") as folder, EmbeddedServer() as server:
        url = server.start(Path(folder) / "valkey")
        with _processes(url, given, Path(folder)) as start:
            streams = asyncio.run(_measure(start, given))
    return report(streams, given.lease_s)


@contextmanager
def _processes(url: str, given: argparse.Namespace, folder: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts roles, and leaves none of them running."""
    environment = {
        **os.environ,
        "SLOTSTREAM_REDIS_URL": url,
        "SLOTSTREAM_LEASE_S": str(given.lease_s),
        "SLOTSTREAM_MODEL": str(given.model or demo_model_path()),
        "SLOTSTREAM_PARALLEL": str(given.streams),
        "SLOTSTREAM_CTX_SIZE": str(given.streams * (given.tokens + 112)),
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(module: str, **variables: str) -> subprocess.Popen[bytes]:
        with (folder / f"{module}.log").open("ab") as log:
            command = [sys.executable, "-m", module]
            started.append(subprocess.Popen(command, env={**environment, **variables}, stdout=log, stderr=log))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()


async def _measure(start: Callable[..., subprocess.Popen[bytes]], given: argparse.Namespace) -> list[Stream]:
    port = free_port("127.0.0.1")
    start("api", SLOTSTREAM_PORT=str(port))
    holder, streams = start("worker"), []
    timeout = aiohttp.ClientTimeout(total=None, sock_read=PATIENCE_S)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as http:
        await _until(lambda: _n_workers(http), 1)
        for number in range(given.rounds):
            followers = [await Follower.of(http, given.tokens, seed) for seed in range(given.streams)]
            reading = [asyncio.create_task(follower.read()) for follower in followers]
            heir = start("worker")
            await _until(lambda: _n_workers(http), 2)
            while any(len(follower.arrivals) < FIRST_TOKENS for follower in followers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            killed_at = time.perf_counter()
            holder.send_signal(signal.SIGKILL)
            await asyncio.gather(*reading)
            streams += [follower.seen(killed_at) for follower in followers]
            holder.wait()
            holder = heir
            print(f"kill {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
    return streams


class Follower:
    """One client, with the times at which its tokens came."""

    def __init__(self, http: aiohttp.ClientSession, job_id: str, n_tokens: int) -> None:
        self._http = http
        self._job_id = job_id
        self._n_tokens = n_tokens
        self._event = ""
        self._texts: list[str] = []
        self._numbers: list[int] = []
        self._ended: dict[str, Any] = {}
        self.arrivals: list[float] = []

    @classmethod
    async def of(cls, http: aiohttp.ClientSession, n_tokens: int, seed: int) -> Follower:
        body = {"prompt": "Once upon a time", "n_predict": n_tokens, "ignore_eos": True, "seed": seed}
        question = {"endpoint": "/completion", "body": body, "priority": "interactive"}
        async with http.post("/v1/jobs", json=question, raise_for_status=True) as response:
            return cls(http, (await response.json())["id"], n_tokens)

    async def read(self) -> None:
        async with self._http.get(f"/v1/jobs/{self._job_id}/events", raise_for_status=True) as response:
            async for line in response.content:
                self.hear(line.decode().rstrip("\n"), time.perf_counter())

    def hear(self, line: str, at: float) -> None:
        """One line of the event stream."""
        field, _, value = line.partition(": ")
        if field == "id":
            self._numbers.append(int(value))
        elif field == "event":
            self._event = value
        elif field == "data" and self._event == "token":
            self.arrivals.append(at)
            self._texts.append(json.loads(value)["text"])
        elif field == "data":
            self._ended = json.loads(value)

    def seen(self, killed_at: float) -> Stream:
        later = [killed_at, *(at for at in self.arrivals if at > killed_at)]
        _, went_on_at = max(pairwise(later), key=lambda gap: gap[1] - gap[0], default=(killed_at, float("inf")))
        result = self._ended.get("result") or {"content": "", "tokens_predicted": 0, "timings": {"prompt_ms": 0.0}}
        return Stream(went_on_at - killed_at, result["timings"]["prompt_ms"] / 1000, list(self._faults(result)))

    def _faults(self, result: dict[str, Any]) -> Iterator[str]:
        if self._ended.get("status") != "succeeded":
            yield f"ended as {self._ended.get('status')}"
        if self._ended.get("attempts") != 2:
            yield f"was attempted {self._ended.get('attempts')} times"
        if any(after != before + 1 for before, after in pairwise(self._numbers)):
            yield "lost or doubled an event"
        if "".join(self._texts) != result["content"] or result["tokens_predicted"] != self._n_tokens:
            yield "said something else than its result"


async def _n_workers(http: aiohttp.ClientSession) -> int:
    try:
        async with http.get("/slots") as response:
            slots = await response.json()
    except aiohttp.ClientError:
        return 0
    return len({slot["worker"] for slot in slots}) if isinstance(slots, list) else 0


async def _until(count: Callable[[], Awaitable[int]], wanted: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await count() != wanted:  # noqa: ASYNC110 - another process sets no event here
            await asyncio.sleep(0.05)


def report(streams: list[Stream], lease_s: float) -> str:
    silences, prefills = [stream.silence_s for stream in streams], [stream.prefill_s for stream in streams]
    without = [(stream.silence_s - stream.prefill_s) / lease_s for stream in streams]
    faults = [fault for stream in streams for fault in stream.faults]
    rows = [
        (name, f"{of(silences):.2f}", f"{of(prefills):.2f}", f"{of(without):.2f}")
        for name, of in (("median", median), ("highest", max))
    ]
    columns = [
        Column("from kill -9 to the next token", is_text=True),
        Column("seconds"),
        Column("prefill in them"),
        Column("leases without it"),
    ]
    verdict = "; ".join(sorted(set(faults))) or "nothing lost, nothing doubled"
    return (
        f"{table(columns, rows)}\n  {len(streams)} streams, lease {lease_s:g} s: {verdict};"
        " the goal is 1.5 leases beside the prefill"
    )
