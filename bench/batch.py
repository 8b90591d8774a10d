"""Batches: how fast a file becomes a plan and its lines are done, what memory that takes, and what it costs a model.

First lines that a worker without a model does at once, so that only our own work is measured: as many as a batch may
have, as many bytes, and few lines with very much in each. Beside the plan stands a bare `json.loads` of every line.

Then a model: the same requests as a batch and sent directly, all at once, in turns to the same worker; with prompts
that have nothing in common, and with prompts that begin alike, in no order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import aiohttp
from pydantic import SecretStr

from api.cli.stack import Place, free_port, open_stack
from bench.crew import Crew, Spent
from bench.table import Column, table
from shared.bus import EmbeddedServer
from shared.settings import ServeSettings
from worker.demo import demo_model_path
from worker.threads import choose_threads

FIRST_ID, LAST_ID = 100, 49_000
"""Ids of ordinary tokens of the demo model: no control tokens in between."""
PATIENCE_S = 900.0
LOOK_S = 0.05
N_SLOTS, N_CTX = 8, 8192
ENDPOINT = "/v1/completions"
MB = 1_000_000


class Shape(NamedTuple):
    """Of a file whose lines cost nothing: how many there are, and bytes of each."""

    name: str
    n_lines: int
    n_bytes: int


class Load(NamedTuple):
    """Of a model: prompts of `n_prompt` tokens, the first `n_shared` of which `n_alike` prompts have in common."""

    name: str
    n_requests: int
    n_prompt: int
    n_shared: int
    n_alike: int
    n_predict: int


SHAPES = (Shape("many lines", 50_000, 200), Shape("many bytes", 50_000, 3_990), Shape("large lines", 20, 9_900_000))
LOADS = (Load("unrelated prompts", 96, 64, 0, 1, 32), Load("shared prefixes, shuffled", 48, 288, 256, 12, 16))
TINY = (Shape("few lines", 500, 200),)
TINY_LOADS = (Load("unrelated prompts", 8, 16, 0, 1, 4),)
"""To see that the measurement works; the figures mean little."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="turns of both ways to a model (default: 2)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads of a decode; 0 chooses")
    parser.add_argument("--only", choices=("lines", "model"), help="measure this alone")
    parser.add_argument("--tiny", action="store_true", help="little work, to see that it runs")


def measure(given: argparse.Namespace) -> str:
    told = []
    if given.only != "model":
        runs = []
        for shape in TINY if given.tiny else SHAPES:
            with tempfile.TemporaryDirectory(prefix="slotstream-bench-") as folder:
                runs.append(asyncio.run(_lines(shape, Path(folder))))
        told.append(report_lines(runs))
    if given.only != "lines":
        with tempfile.TemporaryDirectory(prefix="slotstream-bench-") as folder:
            loads = TINY_LOADS if given.tiny else LOADS
            threads = given.threads or choose_threads()
            told.append(report_model(asyncio.run(_model(loads, given.rounds, threads, Path(folder)))))
    return "\n\n".join(told)


class LinesRun(NamedTuple):
    """A batch of lines that are done at once."""

    shape: Shape
    bare_s: float
    """To take each line of the file apart."""
    plan_s: float
    """From the batch's making until its lines can go."""
    run_s: float
    """From then on to its end."""
    spent: Spent


async def _lines(shape: Shape, folder: Path) -> LinesRun:
    _say(f"{shape.name}: {shape.n_lines:,} lines of {shape.n_bytes:,} bytes")
    file = folder / "lines.jsonl"
    await asyncio.to_thread(write_lines, file, padded_lines(shape))
    bare_s = await asyncio.to_thread(_bare_s, file)
    async with Crew.start(folder) as crew, _client(crew.url) as http:
        file_id = await upload(http, file)
        began = crew.look()
        ended = await run_batch(http, file_id)
        spent = crew.look().since(began)
    assert ended["request_counts"] == {"total": shape.n_lines, "completed": shape.n_lines, "failed": 0}, ended
    plan_s = ended["seconds"]["in_progress"] - ended["seconds"]["created"]
    return LinesRun(shape, bare_s, plan_s, ended["seconds"]["ended"] - ended["seconds"]["in_progress"], spent)


def padded_lines(shape: Shape) -> Iterator[str]:
    """Of about the wanted size, each with a prompt of its own."""
    for number in range(shape.n_lines):
        bare = line(number, {"prompt": "", "max_tokens": 8})
        padding = f"{number} " + "lorem ipsum " * (shape.n_bytes // 12)
        yield line(number, {"prompt": padding[: max(8, shape.n_bytes - len(bare))], "max_tokens": 8})


def line(number: int, body: dict[str, Any]) -> str:
    return json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body}) + "\n"


def write_lines(path: Path, lines: Iterator[str]) -> None:
    with path.open("w") as file:
        file.writelines(lines)


def _bare_s(path: Path) -> float:
    started = time.perf_counter()
    with path.open("rb") as file:
        for text in file:
            json.loads(text)
    return time.perf_counter() - started


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        yield http


async def upload(http: aiohttp.ClientSession, path: Path) -> str:
    """The file's id."""
    with path.open("rb") as file:
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", file, filename=path.name)
        async with http.post("/v1/files", data=form, raise_for_status=True) as response:
            return str((await response.json())["id"])


async def run_batch(http: aiohttp.ClientSession, file_id: str) -> dict[str, Any]:
    """The batch at its end; under `seconds` when it was made, began and ended, by our own clock: its own has whole
    seconds."""
    asked = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
    seconds = {"created": time.perf_counter()}
    async with http.post("/v1/batches", json=asked, raise_for_status=True) as response:
        batch: dict[str, Any] = await response.json()
    path = f"/v1/batches/{batch['id']}"
    while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
        await asyncio.sleep(LOOK_S)
        async with http.get(path, raise_for_status=True) as response:
            batch = await response.json()
        if batch["status"] != "validating":
            seconds.setdefault("in_progress", time.perf_counter())
    return batch | {"seconds": seconds | {"ended": time.perf_counter()}}


class Turn(NamedTuple):
    """The same requests in both ways. Seconds from the first question to the last answer."""

    load: Load
    batch_s: float
    direct_s: float
    batch_computed: int
    direct_computed: int
    """Tokens of prompts that were not found in the cache."""


async def _model(loads: Sequence[Load], n_rounds: int, threads: int, folder: Path) -> list[Turn]:
    for name in ("valkey", "logs"):
        (folder / name).mkdir()
    with EmbeddedServer() as server:
        settings = ServeSettings(
            redis_url=SecretStr(server.start(folder / "valkey")),
            model=str(demo_model_path()),
            parallel=N_SLOTS,
            ctx_size=N_CTX,
            flash_attn="on",
            threads=threads,
            log_level="warning",
        )
        place = Place(folder / "valkey", "127.0.0.1", free_port("127.0.0.1"), folder / "logs")
        async with open_stack(settings, place, say=_say) as stack, _client(place.url) as http:
            await stack.become_ready(needs_worker=True, tell=_say)
            return [await _turn(http, load, number, folder) for load in loads for number in range(n_rounds)]


async def _turn(http: aiohttp.ClientSession, load: Load, number: int, folder: Path) -> Turn:
    """New prompts for each way, so that neither finds the other's."""
    _say(f"{load.name}, round {number + 1}")
    ways = [_through_batch, _directly]
    measured = {}
    for way in ways if number % 2 == 0 else reversed(ways):
        prompts = prompts_of(load, seed=2 * number + ways.index(way))
        measured[way] = await way(http, [_body(load, prompt) for prompt in prompts], folder)
    (batch_s, batch_computed), (direct_s, direct_computed) = measured[_through_batch], measured[_directly]
    _say(f"  as a batch {batch_s:.1f} s, sent at once {direct_s:.1f} s")
    return Turn(load, batch_s, direct_s, batch_computed, direct_computed)


def _body(load: Load, prompt: list[int]) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": load.n_predict, "ignore_eos": True, "temperature": 0}


async def _through_batch(
    http: aiohttp.ClientSession, bodies: Sequence[dict[str, Any]], folder: Path
) -> tuple[float, int]:
    file = folder / "requests.jsonl"
    await asyncio.to_thread(write_lines, file, (line(number, body) for number, body in enumerate(bodies)))
    started = time.perf_counter()
    ended = await run_batch(http, await upload(http, file))
    async with http.get(f"/v1/files/{ended['output_file_id']}/content", raise_for_status=True) as response:
        content = await response.read()
    seconds = time.perf_counter() - started
    return seconds, _computed([json.loads(text)["response"]["body"] for text in content.splitlines()], bodies)


async def _directly(http: aiohttp.ClientSession, bodies: Sequence[dict[str, Any]], folder: Path) -> tuple[float, int]:
    async def ask(body: dict[str, Any]) -> dict[str, Any]:
        async with http.post(ENDPOINT, json=body, raise_for_status=True) as response:
            answer: dict[str, Any] = await response.json()
            return answer

    started = time.perf_counter()
    answers = await asyncio.gather(*map(ask, bodies))
    return time.perf_counter() - started, _computed(answers, bodies)


def _computed(answers: Sequence[dict[str, Any]], bodies: Sequence[dict[str, Any]]) -> int:
    assert sum(answer["usage"]["completion_tokens"] for answer in answers) == sum(b["max_tokens"] for b in bodies)
    return sum(
        answer["usage"]["prompt_tokens"] - answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        for answer in answers
    )


def prompts_of(load: Load, seed: int) -> list[list[int]]:
    """Token ids, shuffled; the same for the same seed."""
    draw = random.Random(f"{load.name} {seed}")

    def ids(count: int) -> list[int]:
        return [draw.randrange(FIRST_ID, LAST_ID) for _ in range(count)]

    prompts = [
        shared + ids(load.n_prompt - load.n_shared)
        for shared in [ids(load.n_shared) for _ in range(load.n_requests // load.n_alike)]
        for _ in range(load.n_alike)
    ]
    draw.shuffle(prompts)
    return prompts


def report_lines(runs: Sequence[LinesRun]) -> str:
    rows, memory = [], []
    for run in runs:
        shape, spent = run.shape, run.spent
        rows.append(
            (
                shape.name,
                f"{shape.n_lines:,}",
                f"{shape.n_lines * shape.n_bytes / MB:.0f}",
                f"{shape.n_lines / run.plan_s:,.0f}",
                f"{run.bare_s / run.plan_s:.2f}",
                f"{shape.n_lines / run.run_s:,.0f}",
                *(f"{spent.cpu_s[name] / shape.n_lines * 1e6:,.0f}" for name in ("tasks", "api", "server")),
            )
        )
        memory.append((shape.name, *(f"{mb:.0f}" for pair in spent.memory_mb.values() for mb in pair)))
    names = list(runs[0].spent.memory_mb)
    speed = [Column("a batch that is done at once", is_text=True), Column("lines"), Column("MB")]
    speed += [Column("planned/s"), Column("of bare JSON"), Column("done/s")]
    speed += [Column("µs of tasks"), Column("µs of the API"), Column("µs of the server")]
    peaks = [Column("MB of memory, before and at the most", is_text=True)]
    peaks += [Column(title) for name in names for title in (name, "most")]
    return f"{table(speed, rows)}\n\n{table(peaks, memory)}"


def report_model(turns: Sequence[Turn]) -> str:
    rows = []
    for load in dict.fromkeys(turn.load for turn in turns):
        own = [turn for turn in turns if turn.load == load]
        n_tokens = load.n_requests * load.n_predict
        ratios = [turn.direct_s / turn.batch_s for turn in own]
        rows.append(
            (
                load.name,
                f"{n_tokens / median(turn.batch_s for turn in own):.1f}",
                f"{n_tokens / median(turn.direct_s for turn in own):.1f}",
                f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                f"{median(turn.batch_computed for turn in own):.0f}",
                f"{median(turn.direct_computed for turn in own):.0f}",
            )
        )
    columns = [Column("the same requests", is_text=True), Column("tokens/s of a batch"), Column("sent at once")]
    columns += [Column("ratio"), Column("prompt tokens computed"), Column("sent at once")]
    return f"{table(columns, rows)}\n  the batch's time is from the upload of its file to the last byte of its results"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
