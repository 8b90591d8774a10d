"""A batch whose tasks process dies, wherever it may be: somebody else goes on, and each line is accounted for once."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from shared.batches import BatchStatus, Segment, segment_pieces
from tests.api.scripted_worker import ScriptedWorker
from tests.api.tasks.batches.conftest import PATIENCE_S, Bench, jsonl, names, say
from tests.api.tasks.batches.mortal import Death, Life

SHORT_LEASE_S = 0.03

MIXED = [say("a"), say("b", "say c"), say("bad type", n_predict="x"), {"custom_id": "bad line"}, say("long", "long")]


async def dies_in(bench: Bench, batch_id: str, life: Life) -> bool:
    """Work on a batch for the length of a life; False when the batch ended before."""
    work = bench.another(life=life)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not (await bench.batch(batch_id)).status.is_ended:
                await bench.step(batch_id, work, SHORT_LEASE_S)
    except Death:
        return True
    return False


async def check_is_whole(bench: Bench, batch_id: str, good: list[str], bad: list[str]) -> None:
    batch = await bench.batch(batch_id)
    outputs, errors = await bench.records(batch_id)
    assert (names(outputs), names(errors)) == (sorted(good), sorted(bad))
    assert (batch.n_total, batch.n_completed, batch.n_failed) == (len(good) + len(bad), len(good), len(bad))
    for file_id, n_records in ((batch.output_file_id, len(good)), (batch.error_file_id, len(bad))):
        file = await bench.bus.files.record(file_id) if file_id else None
        content = [part for piece in file.pieces async for part in bench.store.read(piece.name)] if file else []
        assert b"".join(content).count(b"\n") == n_records


async def test_it_may_die_behind_any_call(bench: Bench, worker: ScriptedWorker) -> None:
    """A file is worked on again and again, by one who dies one call later each time, and then to its end by another."""
    seen: set[str] = set()
    for n_calls in count(1):
        batch_id = await bench.made(jsonl(MIXED))
        life = Life(n_calls)
        has_died = await dies_in(bench, batch_id, life)
        await bench.ended(batch_id, bench.another())
        await check_is_whole(bench, batch_id, ["a", "b"], ["bad line", "bad type", "long"])
        seen |= set(life.calls)
        if not has_died:
            break
    assert seen >= {"batches.planned", "batches.feed", "store.put", "batches.collect", "batches.finish"}
    assert len(worker.taken) == 3 * n_calls, "a line was given to a worker twice"


async def test_it_may_die_at_every_second_call(bench: Bench) -> None:
    """Nobody lives for long, and all together come to the end."""
    batch_id = await bench.made(jsonl(MIXED))
    for n_calls in count(4):
        if not await dies_in(bench, batch_id, Life(n_calls)):
            break
    await check_is_whole(bench, batch_id, ["a", "b"], ["bad line", "bad type", "long"])


@pytest.mark.parametrize("how", ["cancelled", "expired"])
async def test_it_may_die_while_a_batch_is_stopped(bench: Bench, worker: ScriptedWorker, how: str) -> None:
    lines = [say(f"{n}", "hold a|b") for n in range(6)]
    settings = bench.settings.model_copy(update={"batch_in_flight": 3})
    for n_calls in count(1):
        batch_id = await bench.made(lines)
        n_taken = len(worker.taken)
        await bench.step(batch_id, bench.another(settings))
        await worker.has_taken(n_taken + 3)
        if how == "cancelled":
            await bench.bus.batches.cancel(batch_id)
        else:
            hold = await bench.held(batch_id)
            assert await bench.bus.batches.finalize(hold, "expired")
            await bench.bus.batches.rest(hold, 0)
        has_died = await dies_in(bench, batch_id, Life(n_calls))
        batch = await bench.ended(batch_id, bench.another(settings))
        assert batch.status is BatchStatus(how)
        await check_is_whole(bench, batch_id, [], [str(n) for n in range(6)])
        await worker.is_idle()
        if not has_died:
            break


async def test_who_wakes_up_too_late_writes_beside_what_counts(bench: Bench) -> None:
    """It was paused before it wrote a segment, another made that segment meanwhile, and then it wrote on."""
    batch_id = await bench.made([say("a"), say("b")])
    await bench.step(batch_id)
    late = await bench.held(batch_id, SHORT_LEASE_S)
    await bench.ended(batch_id, bench.another())
    for piece in segment_pieces(batch_id, Segment(number=0, mark=late.mark, n_output=1, output_bytes=2)):
        await bench.store.put(piece.name, b"{}")
    with pytest.raises(AssertionError):  # of the harness: a segment without a mark is written over
        for piece in segment_pieces(batch_id, (await bench.bus.batches.segments(batch_id))[0]):
            if piece.n_bytes:
                await bench.store.put(piece.name, b"{}")
                await check_is_whole(bench, batch_id, ["a", "b"], [])


async def test_two_at_once_do_each_thing_once(bench: Bench, worker: ScriptedWorker) -> None:
    lines = [say(str(n)) for n in range(40)]
    settings = bench.settings.model_copy(update={"batch_in_flight": 5})
    batch_id = await bench.made(lines)

    async def rush(work: Any) -> None:
        """As sweeps do: each takes what is due, and somebody else may be first."""
        while not (await bench.batch(batch_id)).status.is_ended:
            for due in await bench.bus.batches.due():
                if hold := await bench.bus.batches.hold(*due, 5.0):
                    await work.step(hold)
                    await bench.bus.batches.rest(hold, 0.0)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(rush(bench.another(settings)) for _ in range(3)))
    await check_is_whole(bench, batch_id, [str(n) for n in range(40)], [])
    assert len(worker.taken) == 40
