"""Batches for tests: made, planned, held, and plans whose lines are all of one width."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shared.batches import Batch, line_job_id
from shared.bus import Bus, FedLine, Hold, Refusal, Wanted
from shared.events import Finished
from shared.jobs import Completion, Job, Lane

SUCCEEDED = Finished(status="succeeded")
WIDTH = 100
"""Bytes of each line of these plans."""
RETENTION_S = 3600.0


def a_batch(bus: Bus, **fields: Any) -> Batch:
    given = {"tenant": "t", "endpoint": "/v1/completions", "input_file_id": "file-0_" + "0" * 24}
    given |= {"id": bus.batches.new_id(), "completion_window": "24h", "window_s": 86400.0}
    return Batch(**(given | fields))


async def made(bus: Bus, **fields: Any) -> Batch:
    batch = a_batch(bus, **fields)
    assert (await bus.batches.create(batch)) == (batch.id, True)
    return batch


async def held(bus: Bus, batch: Batch, lease_s: float = 5.0) -> Hold:
    [epoch] = [due.epoch for due in await bus.batches.due() if due.batch_id == batch.id]
    hold = await bus.batches.hold(batch.id, epoch, lease_s)
    assert hold is not None
    return hold


async def planned(bus: Bus, n_lines: int, **fields: Any) -> tuple[Batch, Hold]:
    """A batch whose lines are all good, in somebody's hands."""
    batch = await made(bus, **fields)
    hold = await held(bus, batch)
    assert await bus.batches.planned(hold, n_total=n_lines, n_planned=n_lines, model="m")
    return batch, hold


async def fed(bus: Bus, n_lines: int, **fields: Any) -> tuple[Batch, Hold]:
    """One whose lines are all on their way."""
    batch, hold = await planned(bus, n_lines, **fields)
    assert await bus.batches.feed(hold, lines(batch, range(n_lines))) == (n_lines, None, True)
    return batch, hold


def job_of(batch: Batch, number: int) -> str:
    return line_job_id(batch.id, number)


def jobs_of(batch: Batch, numbers: Iterable[int]) -> list[str]:
    return [job_of(batch, number) for number in numbers]


def lines(batch: Batch, numbers: Iterable[int]) -> list[FedLine]:
    return [FedLine(_job(batch, number), number * WIDTH, (number + 1) * WIDTH) for number in numbers]


def refused(batch: Batch, number: int) -> FedLine:
    return FedLine(None, number * WIDTH, (number + 1) * WIDTH, Refusal(job_of(batch, number), f'{{"line": {number}}}'))


async def record(bus: Bus, batch: Batch) -> Batch:
    found = await bus.batches.record(batch.id)
    assert found is not None
    return found


async def work(bus: Bus, n_lines: int) -> list[str]:
    """Has a worker end so many of those that wait; returns their jobs' ids."""
    claims = [claim for _ in range(n_lines) for claim in await bus.queue.claim("w1", "m", Wanted(0, 0, 1))]
    assert len(claims) == n_lines
    for claim in claims:
        assert await bus.queue.finish(claim.lease, SUCCEEDED, claim.n_events + 1)
    return [claim.job.id for claim in claims]


def _job(batch: Batch, number: int) -> Job:
    return Job(
        id=job_of(batch, number),
        model="m",
        request=Completion(prompts=(f"line {number}",), n_predict=8),
        lane=Lane.BULK,
        tenant=batch.tenant,
        batch=batch.id,
    )
