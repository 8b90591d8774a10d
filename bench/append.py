"""Chunks per second into token logs: fenced appends in pipelines of 32 over 32 jobs, beside bare XADD and PUBLISH.

Both sides send the same tokens over one connection of the same kind and wait for a pipeline's replies before the next,
as a worker's publisher does. What the fence costs, and what makes a chunk of tokens, is the difference.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop
from pydantic import SecretStr
from redis.asyncio import Redis

from bench.table import Column, table
from shared.bus import Bus, Chunk, Claimed, EmbeddedServer, Verdict, Wanted, open_bus
from shared.events import Tokens
from shared.jobs import Completion, Job
from shared.settings import BusSettings

N_JOBS = 32
"""And chunks in a pipeline: one of each job."""
MODEL = "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pipelines", type=int, default=300, metavar="N", help="of each side in a round (default: 300)"
    )
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="turns of each side (default: 7)")


class Round(NamedTuple):
    fenced_s: float
    bare_s: float


def measure(given: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(prefix="slotstream-bench-") as folder, EmbeddedServer() as server:
        rounds = uvloop.run(_measure(server.start(Path(folder)), given.rounds, given.pipelines))
    return report(rounds, given.pipelines * N_JOBS)


async def _measure(url: str, n_rounds: int, n_pipelines: int) -> list[Round]:
    async with open_bus(BusSettings(redis_url=SecretStr(url)), name="bench") as bus, Redis.from_url(url) as bare:
        for _ in range(N_JOBS):
            await bus.queue.enqueue(Job(id=bus.queue.new_job_id(), model=MODEL, request=Completion(prompts=("",))))
        claimed = await bus.queue.claim("worker", MODEL, Wanted(0, N_JOBS, 0))
        assert len(claimed) == N_JOBS
        rounds = []
        for turn in range(n_rounds):
            first = turn * n_pipelines + 1
            fenced_s = await _timed(lambda number: _append(bus, claimed, number), first, n_pipelines)
            bare_s = await _timed(lambda number: _add_and_publish(bare, number), first, n_pipelines)
            rounds.append(Round(fenced_s, bare_s))
        return rounds


async def _timed(send: Callable[[int], Awaitable[None]], first: int, n_pipelines: int) -> float:
    started = time.perf_counter()
    for number in range(first, first + n_pipelines):
        await send(number)
    return time.perf_counter() - started


def _token(number: int) -> Tokens:
    return Tokens(ids=(number,), text=f" token{number % 100}")


async def _append(bus: Bus, claimed: list[Claimed], number: int) -> None:
    chunks = [Chunk(each.lease, number, (_token(number),)) for each in claimed]
    verdicts = await bus.queue.append(chunks)
    assert all(verdict is Verdict.OK for verdict in verdicts)


async def _add_and_publish(bare: Redis, number: int) -> None:
    async with bare.pipeline(transaction=False) as pipeline:
        for job in range(N_JOBS):
            events = _token(number).to_json()
            pipeline.xadd(f"log:{job}", {"n": 1, "e": events}, id=f"1-{number}")
            pipeline.publish(f"live:{job}", events)
        await pipeline.execute()


def report(rounds: list[Round], n_chunks: int) -> str:
    ratios = [each.bare_s / each.fenced_s for each in rounds]
    rows = [
        (name, f"{n_chunks / median(spent):,.0f}", f"{n_chunks / max(spent):,.0f} to {n_chunks / min(spent):,.0f}")
        for name, spent in (
            ("fenced appends", [each.fenced_s for each in rounds]),
            ("bare XADD and PUBLISH", [each.bare_s for each in rounds]),
        )
    ]
    columns = [Column("in pipelines of 32", is_text=True), Column("chunks/s"), Column("lowest to highest")]
    return (
        f"{table(columns, rows)}\n  {median(ratios):.2f} of the bare speed"
        f" ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} rounds)"
    )
