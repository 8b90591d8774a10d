"""A batch of many lines: each is done once, in few segments, and no more are on their way than may be."""

from __future__ import annotations

import asyncio

import pytest

from api.tasks.batches.feeding import IN_FLIGHT
from tests.api.tasks.batches.conftest import PATIENCE_S, Bench, names, say

N_LINES = 2_000
MOST_SEGMENTS = 60
"""Each is an object of the store, and a request to whoever has it."""


@pytest.mark.slow
async def test_thousands_of_lines_are_done_once_each(bench: Bench) -> None:
    batch_id = await bench.made([say(f"line-{number}", "say a") for number in range(N_LINES)])
    most = 0
    async with asyncio.timeout(3 * PATIENCE_S):
        while not (batch := await bench.step(batch_id)).status.is_ended:
            most = max(most, batch.n_in_flight)
    outputs, errors = await bench.records(batch_id)
    assert names(outputs) == sorted(f"line-{number}" for number in range(N_LINES)) and errors == []
    assert most == IN_FLIGHT
    assert batch.n_segments <= MOST_SEGMENTS
