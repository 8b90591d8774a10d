from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from api.tasks.outbox import bridge
from shared.bus import Bus, OutboxRow
from shared.jobs import Completion, Job, JobStatus


async def cancelled(bus: Bus) -> str:
    """A durable job that ended: cancelled while it waited."""
    job = Job(id=bus.queue.new_job_id(), model="m", request=Completion(prompts=("x",)), is_durable=True)
    await bus.queue.enqueue(job)
    await bus.queue.cancel(job.id)
    return job.id


async def test_a_row_is_told_and_then_gone(bus: Bus) -> None:
    told: asyncio.Queue[OutboxRow] = asyncio.Queue()

    async def tell(_: Bus, rows: Sequence[OutboxRow]) -> None:
        for row in rows:
            told.put_nowait(row)

    jobs = [await cancelled(bus) for _ in range(3)]
    task = asyncio.create_task(bridge(bus, [tell]))
    async with asyncio.timeout(20):
        rows = [await told.get() for _ in jobs]
        late = await cancelled(bus)
        assert (await told.get()).id == late
    task.cancel()
    assert [(row.id, row.status) for row in rows] == [(job, JobStatus.CANCELLED) for job in jobs]


async def test_a_row_comes_again_until_it_was_told(bus: Bus) -> None:
    async def fail(_: Bus, rows: Sequence[OutboxRow]) -> None:
        raise OSError("the receiver is away")

    job = await cancelled(bus)
    for _ in range(2):
        with pytest.raises(OSError, match="receiver"):
            await bridge(bus, [fail])
    assert [row.id for row in await bus.outbox.read()] == [job]
    rows = await bus.outbox.read()
    await bus.outbox.acknowledge(rows)
    await bus.outbox.acknowledge(rows)
    assert await bus.outbox.read() == []
