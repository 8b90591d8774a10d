from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from api.tasks.batches import plan
from api.tasks.batches.plan import plan_text, read_at, read_on, read_plan_text
from shared.batches import plan_object
from shared.errors import UnknownFile
from shared.store import Store, open_store

BATCH = "batch_0_" + "0" * 24


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(str(tmp_path)) as opened:
        yield opened


def text(number: int, n_bytes: int) -> bytes:
    return plan_text(number, b'{"custom_id":"%d","url":"/x","body":{"p":"%b"}}' % (number, b"x" * n_bytes))


async def kept(store: Store, sizes: list[int]) -> list[int]:
    """Puts a plan of lines of these sizes; where they begin."""
    texts = [text(number, size) for number, size in enumerate(sizes)]
    await store.put(plan_object(BATCH), b"".join(texts))
    return [sum(map(len, texts[:number])) for number in range(len(texts))]


async def test_lines_are_read_on_from_any_of_them_whatever_pieces_they_come_in(store: Store) -> None:
    source = random.Random(1)
    sizes = [source.choice([0, 10, 1000, 400_000, 1_500_000]) for _ in range(30)]
    starts = await kept(store, sizes)
    for first in (0, 7, 29):
        lines = [line async for line in read_on(store, BATCH, starts[first])]
        assert [line.start for line in lines] == starts[first:]
        assert [line.stop for line in lines[:-1]] == starts[first + 1 :]
        assert [read_plan_text(line.text).number for line in lines] == list(range(first, 30))


async def test_lines_are_read_at_their_places_in_the_order_of_the_plan(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = await kept(store, [100] * 200)
    for gap in (0, 1000, 10**9):
        monkeypatch.setattr(plan, "GAP", gap)
        wanted = [150, 3, 4, 199, 0]
        numbers = [
            read_plan_text(line.text).number async for line in read_at(store, BATCH, [starts[n] for n in wanted])
        ]
        assert numbers == sorted(wanted)


async def test_what_is_not_in_a_plan_is_not_read(store: Store) -> None:
    starts = await kept(store, [10, 10])
    assert [line.start async for line in read_at(store, BATCH, [starts[1], 10_000])] == [starts[1]]
    assert [line async for line in read_at(store, BATCH, [])] == []
    with pytest.raises(UnknownFile):
        async with aclosing(read_on(store, "batch_0_" + "1" * 24, 0)) as lines:
            await anext(lines)
