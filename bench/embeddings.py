"""Inputs/s of embeddings through the whole queue, beside llama-server with the same model.

The same token ids, threads, slots and batch, in requests of one input and of many; servers take turns, since the
machine's speed drifts. Ours is measured as it is, where a vector never depends on its neighbours, and with
`--embedding-batch on`, where inputs share decodes whatever their weights, as they do in llama-server.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import aiohttp
import gguf
from pydantic import SecretStr

from api.cli.stack import Place, free_port, open_stack
from bench.llama_server import llama_server
from bench.table import Column, table
from shared.bus import EmbeddedServer
from shared.settings import ServeSettings
from tests.minilm import write_minilm
from worker.threads import choose_threads

FIRST_ID, LAST_ID = 2000, 28_000
"""Ids of ordinary words and their parts."""
N_SLOTS, N_UBATCH = 16, 512
PATIENCE_S = 600.0
OURS, SHARING, PEER = "slotstream", "slotstream, sharing", "llama-server"


class Shape(NamedTuple):
    """Of the work: tokens of an input, inputs of a request, requests at a time."""

    n_tokens: int
    n_inputs: int
    n_in_flight: int


SHAPES = (Shape(16, 1, N_SLOTS), Shape(16, 32, 2), Shape(128, 32, 2))


class Server(NamedTuple):
    name: str
    url: str


class Turn(NamedTuple):
    """What one server did with one set of inputs."""

    server: str
    shape: Shape
    inputs_per_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=8192, metavar="N", help="tokens of a turn (default: 8192)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each server (default: 3)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads of a decode; 0 chooses")
    parser.add_argument("--type", choices=("F32", "F16", "Q8_0"), default="F16", help="of the weights (default: F16)")
    parser.add_argument("--peer", type=Path, default=None, metavar="FILE", help="a llama-server to measure beside us")


def measure(given: argparse.Namespace) -> str:
    threads = given.threads or choose_threads()
    with tempfile.TemporaryDirectory(prefix="slotstream-bench-") as text, ExitStack() as opened:
        folder = Path(text)
        model = write_minilm(folder / "minilm.gguf", gguf.GGMLQuantizationType[given.type])
        peers = []
        if given.peer:
            size = ("-np", N_SLOTS, "-c", N_SLOTS * N_UBATCH, "-b", N_UBATCH, "-ub", N_UBATCH, "-t", threads)
            peer = llama_server(given.peer, model, "--embeddings", *map(str, size), log=folder / "peer.log")
            peers.append(Server(PEER, opened.enter_context(peer)))
        return report(asyncio.run(_measure(given, threads, model, peers)), given.type)


async def _measure(given: argparse.Namespace, threads: int, model: Path, peers: list[Server]) -> list[Turn]:
    async with AsyncExitStack() as opened:
        ours = [
            Server(name, await opened.enter_async_context(_slotstream(model, threads, batch)))
            for name, batch in ((OURS, "auto"), (SHARING, "on"))
        ]
        return [
            await _turn(server, shape, max(given.tokens // shape.n_tokens, shape.n_inputs), seed=number)
            for shape in SHAPES
            for number in range(given.rounds)
            for server in (*ours, *peers)
        ]


@asynccontextmanager
async def _slotstream(model: Path, threads: int, batch: Literal["auto", "on"]) -> AsyncIterator[str]:
    folder = model.parent / batch
    for name in ("valkey", "logs"):
        (folder / name).mkdir(parents=True)
    with EmbeddedServer() as server:
        settings = ServeSettings(
            redis_url=SecretStr(server.start(folder / "valkey")),
            model=str(model),
            embedding=True,
            embedding_batch=batch,
            parallel=N_SLOTS,
            ubatch_size=N_UBATCH,
            threads=threads,
            log_level="warning",
        )
        place = Place(folder / "valkey", "127.0.0.1", free_port("127.0.0.1"), folder / "logs")
        async with open_stack(settings, place, say=_say) as stack:
            await stack.become_ready(needs_worker=True, tell=_say)
            yield place.url


async def _turn(server: Server, shape: Shape, n_inputs: int, seed: int) -> Turn:
    _say(f"{server.name}: {n_inputs} inputs of {shape.n_tokens} tokens")
    draw = random.Random(seed)
    inputs = [[draw.randrange(FIRST_ID, LAST_ID) for _ in range(shape.n_tokens)] for _ in range(n_inputs)]
    room = asyncio.Semaphore(shape.n_in_flight)
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(server.url, connector=connector, timeout=timeout) as http:

        async def ask(some: Sequence[list[int]]) -> None:
            body: dict[str, Any] = {"input": some, "encoding_format": "base64"}
            async with room, http.post("/v1/embeddings", json=body, raise_for_status=True) as response:
                answer = await response.json()
            assert [item["index"] for item in answer["data"]] == list(range(len(some)))

        await ask(inputs[:1])  # a model is read from the disk when it is first used
        started = time.perf_counter()
        await asyncio.gather(
            *(ask(some) for some in (inputs[at : at + shape.n_inputs] for at in range(0, n_inputs, shape.n_inputs)))
        )
        return Turn(server.name, shape, n_inputs / (time.perf_counter() - started))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report(turns: Sequence[Turn], weights: str) -> str:
    """A row for each kind of work and server."""
    rows = []
    for shape in dict.fromkeys(turn.shape for turn in turns):
        by_server = {
            name: [turn.inputs_per_s for turn in turns if turn.shape == shape and turn.server == name]
            for name in dict.fromkeys(turn.server for turn in turns)
        }
        peers = by_server.get(PEER)
        for name, speeds in by_server.items():
            # Round by round, since a machine's speed drifts.
            ratios = [own / peer for own, peer in zip(speeds, peers, strict=True)] if peers else []
            rows.append(
                (
                    name,
                    f"{shape.n_tokens}",
                    f"{shape.n_inputs}",
                    f"{median(speeds):.0f}",
                    f"{median(ratios):.2f}" if ratios else "",
                    f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "",
                )
            )
    columns = [Column("embeddings", is_text=True), Column("tokens each"), Column("inputs a request")]
    columns += [Column("inputs/s"), Column("times the peer's speed"), Column("in rounds")]
    return f"{table(columns, rows)}\n  all-MiniLM-L6-v2, weights in {weights}; {N_SLOTS} slots"
