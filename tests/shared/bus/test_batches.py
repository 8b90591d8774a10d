"""Batches from their making to their end, and everything that happens to them twice, late or at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.batches import Batch, BatchStatus, LineFault, Segment, Usage, line_job_id, output_file_id
from shared.bus import Bus, Claimed, FedLine, Hold, Refusal, Wanted
from shared.events import Finished
from shared.jobs import Completion, Job, JobStatus, Lane
from tests.shared.bus.conftest import Behind

SUCCEEDED = Finished(status="succeeded")
ENDPOINT = "/v1/completions"
WIDTH = 100
"""Bytes of each line of these plans."""


def a_batch(bus: Bus, **fields: Any) -> Batch:
    given = {"tenant": "t", "endpoint": ENDPOINT, "input_file_id": "file-0_" + "0" * 24, "completion_window": "24h"}
    return Batch(id=bus.batches.new_id(), **(given | {"window_s": 86400.0} | fields))


async def made(bus: Bus, **fields: Any) -> Batch:
    batch = a_batch(bus, **fields)
    assert (await bus.batches.create(batch)) == (batch.id, True)
    return batch


async def held(bus: Bus, batch_id: str, lease_s: float = 5.0) -> Hold:
    [epoch] = [due.epoch for due in await bus.batches.due() if due.batch_id == batch_id]
    hold = await bus.batches.hold(batch_id, epoch, lease_s)
    assert hold is not None
    return hold


async def planned(bus: Bus, n_lines: int, **fields: Any) -> tuple[Batch, Hold]:
    """A batch whose lines are all good, in somebody's hands."""
    batch = await made(bus, **fields)
    hold = await held(bus, batch.id)
    assert await bus.batches.planned(hold, n_total=n_lines, n_planned=n_lines, model="m")
    return batch, hold


def lines(batch: Batch, numbers: Sequence[int]) -> list[FedLine]:
    return [
        FedLine(
            Job(
                id=line_job_id(batch.id, number),
                model="m",
                request=Completion(prompts=(str(number),)),
                lane=Lane.BULK,
                tenant=batch.tenant,
                batch=batch.id,
            ),
            (number + 1) * WIDTH,
        )
        for number in numbers
    ]


async def record(bus: Bus, batch: Batch) -> Batch:
    found = await bus.batches.record(batch.id)
    assert found is not None
    return found


async def work(bus: Bus, n: int) -> list[str]:
    """Has a worker end so many lines."""
    ended = []
    for _ in range(n):
        lease = (await claimed_one(bus)).lease
        assert await bus.queue.finish(lease, SUCCEEDED, 1)
        ended.append(lease.job_id)
    return ended


async def claimed_one(bus: Bus) -> Claimed:
    [one] = await bus.queue.claim("w1", "m", Wanted(0, 0, 1))
    return one


async def test_a_batch_goes_all_its_way(bus: Bus, behind: Behind) -> None:
    batch = await made(bus, metadata={"a": "é"})
    assert (await record(bus, batch)).status is BatchStatus.VALIDATING
    hold = await held(bus, batch.id)
    faults = (LineFault(code="invalid_json", message="no", line=2),)
    assert await bus.batches.planned(
        hold, n_total=4, n_planned=3, faults=faults, segment=Segment(number=0, n_error=1, error_bytes=10), model="m"
    )
    refused = FedLine(None, 300, Refusal(line_job_id(batch.id, 2), '{"x": "é"}'))
    assert await bus.batches.feed(hold, [*lines(batch, [0, 1]), refused]) == (3, None, True)
    ids = [line_job_id(batch.id, number) for number in range(3)]
    assert await bus.batches.flights(batch.id) == ids
    assert set(await work(bus, 2)) == set(ids[:2])
    ended = await bus.batches.ended(batch.id)
    assert {(line.job_id, line.status, line.refusal) for line in ended} == {
        (ids[0], JobStatus.SUCCEEDED, None),
        (ids[1], JobStatus.SUCCEEDED, None),
        (ids[2], None, '{"x": "é"}'),
    }
    assert await bus.batches.finalize(hold, "over")
    segment = Segment(number=1, n_output=2, output_bytes=20, n_error=1, error_bytes=5)
    usage = Usage(input_tokens=3, output_tokens=4)
    for _ in range(2):
        assert await bus.batches.collect(hold, segment, job_ids=ids, n_completed=2, n_failed=1, usage=usage)
    assert await bus.batches.ended(batch.id) == []
    for _ in range(2):
        assert await bus.batches.finish(hold, 100.0)
    done = await record(bus, batch)
    assert done.status is BatchStatus.COMPLETED
    assert (done.n_total, done.n_completed, done.n_failed, done.n_in_flight, done.usage) == (4, 2, 2, 0, usage)
    assert done.output_file_id == output_file_id(batch.id)
    assert done.error_file_id is not None
    assert done.faults == faults
    assert done.completed_at is not None
    assert [(row.kind, row.id, row.status) for row in await bus.outbox.read()] == [
        ("batch", batch.id, BatchStatus.COMPLETED)
    ]
    assert await bus.batches.due() == []
