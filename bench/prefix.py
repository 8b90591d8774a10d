"""Prompts in groups that begin alike, in no order: how much of them is computed, beside llama-server.

Each group shares its first tokens; a request adds some of its own. All are asked for at once, of both servers in turn,
with the same slots, cells, batch and threads. The ideal computes what is shared once for each group, and every
request's own tokens. New prompts in each round, so nothing is left over from the one before.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import aiohttp
from pydantic import SecretStr

from api.cli.stack import Place, free_port, open_stack
from bench.llama_server import llama_server
from bench.table import Column, table
from shared.bus import EmbeddedServer
from shared.settings import ServeSettings
from worker.demo import demo_model_path
from worker.threads import choose_threads

FIRST_ID, LAST_ID = 100, 49_000
"""Ids of ordinary tokens of the demo model: no control tokens in between."""
N_BATCH, N_UBATCH = 2048, 512
PATIENCE_S = 900.0
OURS, PEER = "slotstream", "llama-server"


class Shape(NamedTuple):
    """Of the work: tokens that a group shares, tokens of each request's own, requests of a group, tokens out."""

    n_shared: int
    n_own: int
    n_requests: int
    n_predict: int
    n_slots: int
    n_ctx: int

    def ideal(self, n_groups: int) -> int:
        return n_groups * (self.n_shared + self.n_requests * self.n_own)


WHOLE = Shape(n_shared=512, n_own=32, n_requests=8, n_predict=16, n_slots=8, n_ctx=8192)
TINY = Shape(n_shared=96, n_own=8, n_requests=2, n_predict=2, n_slots=4, n_ctx=1024)
"""To see that the measurement works; the figures mean little."""


class Server(NamedTuple):
    name: str
    url: str
    own_fields: dict[str, Any]
    """Of its requests, beside what both are asked."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one server did with one set of prompts."""

    server: str
    n_groups: int
    seconds: float
    n_computed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--groups", type=int, nargs="+", default=[4, 12], metavar="N", help="groups (default: 4 12)")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="turns of each server (default: 1)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads of a decode; 0 chooses")
    parser.add_argument("--lane", choices=("interactive", "bulk"), default="interactive", help="of our jobs")
    parser.add_argument("--peer", type=Path, default=None, metavar="FILE", help="a llama-server to measure beside us")
    parser.add_argument("--tiny", action="store_true", help="little work, to see that it runs")


def measure(given: argparse.Namespace) -> str:
    shape, threads = TINY if given.tiny else WHOLE, given.threads or choose_threads()
    with tempfile.TemporaryDirectory(prefix="slotstream-bench-") as folder, ExitStack() as opened:
        peers = []
        if given.peer:
            size = ("-np", shape.n_slots, "-c", shape.n_ctx, "-b", N_BATCH, "-ub", N_UBATCH, "-fa", "on", "-t", threads)
            peer = llama_server(given.peer, demo_model_path(), *map(str, size), log=Path(folder) / "peer.log")
            peers.append(Server(PEER, opened.enter_context(peer), {}))
        return report(asyncio.run(_measure(given, shape, threads, Path(folder), peers)), shape)


async def _measure(
    given: argparse.Namespace, shape: Shape, threads: int, folder: Path, peers: list[Server]
) -> list[Turn]:
    async with _slotstream(shape, threads, folder) as url:
        servers = [Server(OURS, url, {"priority": given.lane}), *peers]
        return [
            await _turn(server, n_groups, number, shape)
            for n_groups in given.groups
            for number in range(given.rounds)
            for server in servers
        ]


@asynccontextmanager
async def _slotstream(shape: Shape, threads: int, folder: Path) -> AsyncIterator[str]:
    for name in ("valkey", "logs"):
        (folder / name).mkdir()
    with EmbeddedServer() as server:
        settings = ServeSettings(
            redis_url=SecretStr(server.start(folder / "valkey")),
            model=str(demo_model_path()),
            parallel=shape.n_slots,
            ctx_size=shape.n_ctx,
            batch_size=N_BATCH,
            ubatch_size=N_UBATCH,
            flash_attn="on",
            threads=threads,
            log_level="warning",
        )
        place = Place(folder / "valkey", "127.0.0.1", free_port("127.0.0.1"), folder / "logs")
        async with open_stack(settings, place, say=_say) as stack:
            await stack.become_ready(needs_worker=True, tell=_say)
            yield place.url


def prompts_of(shape: Shape, n_groups: int, seed: int) -> list[list[int]]:
    """Token ids, shuffled; the same for the same seed."""
    draw = random.Random(1000 * n_groups + seed)

    def ids(count: int) -> list[int]:
        return [draw.randrange(FIRST_ID, LAST_ID) for _ in range(count)]

    prompts = [
        shared + ids(shape.n_own)
        for shared in [ids(shape.n_shared) for _ in range(n_groups)]
        for _ in range(shape.n_requests)
    ]
    draw.shuffle(prompts)
    return prompts


async def _turn(server: Server, n_groups: int, number: int, shape: Shape) -> Turn:
    _say(f"{server.name}: {n_groups} groups")
    prompts = prompts_of(shape, n_groups, seed=number)
    body: dict[str, Any] = {"n_predict": shape.n_predict, "temperature": 0, "ignore_eos": True, "cache_prompt": True}
    body |= server.own_fields
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(server.url, connector=connector, timeout=timeout) as http:

        async def ask(prompt: list[int]) -> dict[str, Any]:
            async with http.post("/completion", json=body | {"prompt": prompt}, raise_for_status=True) as response:
                answer: dict[str, Any] = await response.json()
                return answer

        started = time.perf_counter()
        answers = await asyncio.gather(*(ask(prompt) for prompt in prompts))
        seconds = time.perf_counter() - started
    for prompt, answer in zip(prompts, answers, strict=True):
        timings = answer["timings"]
        assert answer["tokens_predicted"] == shape.n_predict, answer
        assert timings["cache_n"] + timings["prompt_n"] == len(prompt), timings
    n_computed = sum(answer["timings"]["prompt_n"] for answer in answers)
    return Turn(server.name, n_groups, seconds, n_computed)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report(turns: Sequence[Turn], shape: Shape) -> str:
    """A row for each server and number of groups."""
    rows = []
    for n_groups in dict.fromkeys(turn.n_groups for turn in turns):
        ours = [turn for turn in turns if turn.n_groups == n_groups and turn.server == OURS]
        peers = [turn for turn in turns if turn.n_groups == n_groups and turn.server == PEER]
        for own in filter(None, (ours, peers)):
            computed = median(turn.n_computed for turn in own)
            rows.append(
                (
                    own[0].server,
                    f"{n_groups}",
                    f"{computed:.0f}",
                    f"{computed / shape.ideal(n_groups):.2f}",
                    f"{median(turn.seconds for turn in own):.1f}",
                    f"{_ratio(own, peers):.2f}" if peers else "",
                )
            )
    columns = [Column("shared prefixes", is_text=True), Column("groups"), Column("tokens computed")]
    columns += [Column("of the ideal"), Column("seconds"), Column("times the peer's speed")]
    return (
        f"{table(columns, rows)}\n  a group: {shape.n_requests} requests of {shape.n_shared} shared and {shape.n_own}"
        f" own tokens, {shape.n_predict} out; {shape.n_slots} slots, {shape.n_ctx} cells"
    )


def _ratio(turns: Sequence[Turn], peers: Sequence[Turn]) -> float:
    """Round by round, since a machine's speed drifts."""
    return median(peer.seconds / turn.seconds for turn, peer in zip(turns, peers, strict=True))
