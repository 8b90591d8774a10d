"""Batches of many lines, and of many bytes, through real processes and a worker that does each line at once: every line
once, and no process grows with the file."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from bench.batch import Shape, padded_lines, run_batch, upload, write_lines
from bench.crew import Crew

MOST_MB = {"api": 40.0, "tasks": 120.0, "worker": 80.0, "server": 80.0}
"""That each may have more than before it heard of the batch: of the server about what is on its way at once."""
MOST_PLANNING_MB = 200.0
"""Of the process that looks through a large file: its own start, the longest lines, some numbers of each line."""


class Case(NamedTuple):
    shape: Shape
    n_bad: int = 0
    """Lines besides that are no requests."""


CASES = [
    pytest.param(Case(Shape("many", 49_000, 200), n_bad=1_000), id="50,000 lines"),
    pytest.param(Case(Shape("bytes", 50_000, 3_990)), id="200 MB"),
    pytest.param(Case(Shape("large", 20, 9_900_000)), id="lines of 10 MB"),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
async def test_every_line_is_done_once_and_memory_does_not_grow_with_the_file(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    await asyncio.to_thread(write_lines, file, lines(case))
    async with Crew.start(tmp_path) as crew, aiohttp.ClientSession(crew.url) as http:
        file_id = await upload(http, file)
        before = crew.look()
        batch = await run_batch(http, file_id)
        counts = {"total": case.shape.n_lines + case.n_bad, "completed": case.shape.n_lines, "failed": case.n_bad}
        assert (batch["status"], batch["request_counts"]) == ("completed", counts)
        outputs = await records(http, batch["output_file_id"])
        errors = await records(http, batch["error_file_id"])
        grown = {name: most - first for name, (first, most) in crew.look().since(before).memory_mb.items()}
    assert outputs == Counter(f"line-{number}" for number in range(case.shape.n_lines))
    assert errors == Counter({None: case.n_bad} if case.n_bad else {})
    assert {name: mb for name, mb in grown.items() if mb > MOST_MB.get(name, MOST_PLANNING_MB)} == {}


def lines(case: Case) -> Iterator[str]:
    yield from padded_lines(case.shape)
    yield from ("no request\n" for _ in range(case.n_bad))


async def records(http: aiohttp.ClientSession, file_id: str | None) -> Counter[Any]:
    """How often each line has a record, by its `custom_id`."""
    found: Counter[Any] = Counter()
    if file_id is not None:
        async with http.get(f"/v1/files/{file_id}/content", raise_for_status=True) as response:
            while text := await response.content.readline():
                found[json.loads(text)["custom_id"]] += 1
    return found
