"""Tokens/s of bulk work through the whole queue beside a raw `llama_decode` loop, and our time between two decodes.

The same prompts as token ids, the same slots, batch, threads and way of waiting; both generate exactly `n_predict`
tokens for each. Queue and loop take turns, since the machine's speed drifts: the ratio is taken pair by pair.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from api.cli.jobservice import JobService, JobView
from api.cli.stack import Place, free_port, open_stack
from bench.machine import Usage, usage
from bench.raw import Workload
from shared.bus import Bus, EmbeddedServer, open_bus
from shared.settings import BusSettings, ServeSettings
from worker.demo import demo_model_path
from worker.threads import choose_threads

N_PROMPT, N_PREDICT, N_SLOTS, N_CTX, N_BATCH, N_UBATCH = 64, 32, 8, 8192, 2048, 512
FIRST_ID, LAST_ID = 100, 49_000
"""Ids of ordinary tokens of the demo model: no control tokens in between."""


@dataclass(frozen=True, slots=True)
class Pair:
    queue_s: float
    raw_s: float
    gap_ms: float
    decode_ms: float
    spent: Usage
    """CPU time during the queue's turn."""

    @property
    def ratio(self) -> float:
        return self.raw_s / self.queue_s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=64, metavar="N", help="jobs in a run (default: 64)")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="runs of each side (default: 5)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads of a decode; 0 chooses")


def measure(given: argparse.Namespace) -> str:
    """Pairs of a run through the queue and a run of the raw loop."""
    load = workload(given.jobs, given.threads or choose_threads())
    with tempfile.TemporaryDirectory(prefix="slotstream-bench-") as folder:
        return report(asyncio.run(_measure(load, given.pairs, Path(folder))), given.jobs)


def workload(n_jobs: int, threads: int) -> Workload:
    draw = random.Random(7)
    prompts = [[draw.randrange(FIRST_ID, LAST_ID) for _ in range(N_PROMPT)] for _ in range(n_jobs)]
    return Workload(str(demo_model_path()), prompts, N_PREDICT, N_SLOTS, N_CTX, N_BATCH, N_UBATCH, threads)


async def _measure(load: Workload, n_pairs: int, folder: Path) -> list[Pair]:
    for name in ("valkey", "logs"):
        (folder / name).mkdir()
    with EmbeddedServer() as server:
        settings = ServeSettings(
            redis_url=SecretStr(server.start(folder / "valkey")),
            model=load.model,
            parallel=load.n_slots,
            ctx_size=load.n_ctx,
            batch_size=load.n_batch,
            ubatch_size=load.n_ubatch,
            threads=load.threads,
            log_level="warning",
        )
        place = Place(folder / "valkey", "127.0.0.1", free_port("127.0.0.1"), folder / "logs")
        async with open_stack(settings, place, say=_say) as stack, JobService(place.url) as service:
            await stack.become_ready(needs_worker=True, tell=_say)
            await _through_queue(service, load._replace(prompts=load.prompts[: load.n_slots]))
            async with open_bus(BusSettings(redis_url=settings.redis_url), name="bench") as bus:
                return [await _pair(service, bus, load, folder / "spec.json") for _ in range(n_pairs)]


async def _pair(service: JobService, bus: Bus, load: Workload, spec: Path) -> Pair:
    before = usage()
    queue_s = await _through_queue(service, load)
    spent = usage().since(before)
    [worker] = await bus.presence.workers()
    return Pair(queue_s, await _raw(load, spec), worker.gap_ms, worker.decode_ms, spent)


async def _through_queue(service: JobService, load: Workload) -> float:
    """Seconds from the first question to the last ending, with 64 jobs in flight."""
    room = asyncio.Semaphore(64)
    tokens = 0

    async def one(prompt: list[int], number: int) -> None:
        nonlocal tokens
        body: dict[str, Any] = {
            "prompt": prompt, "n_predict": load.n_predict, "ignore_eos": True, "seed": number, "cache_prompt": False
        }  # fmt: skip
        async with room:
            fields = {"endpoint": "/completion", "body": body, "priority": "bulk"}
            asked = await service.submit(f"bench-{started}-{number}", fields)
            assert isinstance(asked, JobView), asked
            ended = await service.follow(asked.id, on_event=lambda _: None)
        assert ended is not None and ended.status == "succeeded", ended
        tokens += ended.result["tokens_predicted"]

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, prompt in enumerate(load.prompts):
            group.create_task(one(prompt, number))
    seconds = time.perf_counter() - started
    assert tokens == len(load.prompts) * load.n_predict
    return seconds


async def _raw(load: Workload, spec: Path) -> float:
    await asyncio.to_thread(spec.write_text, json.dumps(load._asdict()))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.raw", str(spec), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await process.communicate()
    seconds: float = json.loads(output)["seconds"]
    return seconds


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report(pairs: list[Pair], n_jobs: int) -> str:
    """One line: both speeds, their ratio, and our own time per step."""
    generated = n_jobs * N_PREDICT
    ratios = [pair.ratio for pair in pairs]

    def median(values: list[float]) -> float:
        return statistics.median(values)

    return (
        f"bulk through the queue   {generated / median([pair.queue_s for pair in pairs]):.1f} tokens/s"
        f"   raw llama_decode loop {generated / median([pair.raw_s for pair in pairs]):.1f} tokens/s"
        f"   ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {len(pairs)} pairs)"
        f"   between two decodes {median([pair.gap_ms for pair in pairs]):.2f} ms"
        f" of {median([pair.decode_ms for pair in pairs]):.0f} ms\n"
        f"  CPU time in the queue's turns: {_shares(pairs)}"
    )


def _shares(pairs: list[Pair]) -> str:
    """Of all CPU time that the machine had in the queue's turns, who took how much."""
    available = sum(pair.queue_s for pair in pairs) * (os.cpu_count() or 1)
    spent: dict[str, float] = {}
    for pair in pairs:
        for name, seconds in [*pair.spent.by_command.items(), ("others", pair.spent.others_s)]:
            spent[name] = spent.get(name, 0.0) + seconds
    parts = sorted(spent.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {seconds / available:.1%}" for name, seconds in parts if seconds / available > 0.001)
