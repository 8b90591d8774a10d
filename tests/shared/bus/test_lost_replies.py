"""The server did it, and nobody heard so: nothing happens twice."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.batches import BatchStatus, Segment
from shared.bus import Bus, Chunk, Unfed, Verdict, Wanted, open_bus
from shared.errors import BusUnavailable
from shared.events import Finished
from shared.jobs import JobStatus
from shared.settings import BusSettings
from tests.shared.bus.bulk import RETENTION_S, WIDTH, jobs_of, lines, made, record, refused
from tests.shared.bus.conftest import ANY, Behind, a_job, claimed, eventually, keeper, queued, tokens

SUCCEEDED = Finished(status="succeeded")


class Cutter:
    """Between a client and its server; cuts a connection when a reply to a script comes back, as often as asked."""

    def __init__(self, upstream: str) -> None:
        self.n_cuts = 0
        self.n_to_cut = 0
        self._upstream = upstream
        self._pumps: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(self._upstream)
        asked = asyncio.Event()
        ends = (writer, to_server)
        self._pumps = {
            *self._pumps,
            asyncio.create_task(self._up(reader, to_server, asked, ends)),
            asyncio.create_task(self._down(from_server, writer, asked, ends)),
        }

    async def _up(
        self,
        client: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        asked: asyncio.Event,
        ends: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        while data := await client.read(65536):
            if b"EVALSHA" in data:
                asked.set()
            server.write(data)
        close(ends)

    async def _down(
        self,
        server: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        asked: asyncio.Event,
        ends: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        while data := await server.read(65536):
            if asked.is_set() and self.n_to_cut:
                self.n_to_cut -= 1
                self.n_cuts += 1
                break
            asked.clear()
            client.write(data)
        close(ends)

    async def stop(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


def close(ends: tuple[asyncio.StreamWriter, ...]) -> None:
    for end in ends:
        end.close()


@pytest.fixture
async def cutter(bus_settings: BusSettings) -> AsyncIterator[tuple[Cutter, Bus]]:
    """A cutter with a bus behind it whose scripts the server has."""
    upstream = bus_settings.redis_url.get_secret_value().removeprefix("unix://")
    cutter = Cutter(upstream)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cutter.sock"
        server = await asyncio.start_unix_server(cutter.accept, path)
        try:
            settings = BusSettings(redis_url=f"unix://{path}", namespace=bus_settings.namespace)
            async with open_bus(settings, name="test") as bus:
                await queued(bus)
                lease = (await claimed(bus)).lease
                await bus.queue.append([Chunk(lease, 1, tokens("1"))])
                await bus.queue.release(lease)
                await bus.queue.finish((await claimed(bus, sweep=True)).lease, SUCCEEDED, 2)
                await bus.queue.cancel((await queued(bus)).id)
                await bus.queue.reap()
                yield cutter, bus
        finally:
            server.close()
            await cutter.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.wait_closed(), 1)


async def test_a_job_whose_replies_were_lost_is_done_once(cutter: tuple[Cutter, Bus], behind: Behind) -> None:
    cut, bus = cutter
    job = a_job(bus, is_durable=True)
    cut.n_to_cut = 2
    assert await bus.queue.enqueue(job, idempotency_key="key") == (job.id, True)
    lease = (await claimed(bus)).lease
    assert await bus.queue.claim("w1", "m", ANY, sweep=True) == []

    cut.n_to_cut = 2
    chunks = [Chunk(lease, 1, tokens("1", "2")), Chunk(lease, 3, tokens("3"))]
    assert await bus.queue.append(chunks) == [Verdict.OK, Verdict.OK]
    assert [(number, event.text) for number, event in await bus.log.read(job.id)] == [(1, "1"), (2, "2"), (3, "3")]

    cut.n_to_cut = 2
    assert await bus.queue.finish(lease, SUCCEEDED, 4)
    assert [entry for entry, fields in await behind.log(job.id) if "end" in fields] == ["1-4"]
    rows = [row for _, row in await behind.client.xrange(f"{behind.keys.prefix(0)}outbox")]
    assert [row[b"job"].decode() for row in rows] == [job.id]
    assert cut.n_cuts == 6


async def test_a_release_whose_reply_was_lost_takes_nothing_from_the_next_holder(
    cutter: tuple[Cutter, Bus],
) -> None:
    cut, bus = cutter
    await queued(bus)
    lease = (await claimed(bus)).lease
    cut.n_to_cut = 1
    assert await bus.queue.release(lease)
    claim = await claimed(bus, "w2", sweep=True)
    assert claim.attempt == 1
    await bus.queue.release(lease)
    assert await bus.queue.append([Chunk(claim.lease, 1, tokens("1"))]) == [Verdict.OK]


async def test_a_cancel_whose_reply_was_lost_is_still_one_ending(cutter: tuple[Cutter, Bus], behind: Behind) -> None:
    cut, bus = cutter
    job = await queued(bus)
    cut.n_to_cut = 1
    assert (await bus.queue.cancel(job.id)).status is JobStatus.CANCELLED
    assert len(await behind.log(job.id)) == 1


async def test_jobs_claimed_into_the_void_come_back_by_their_leases_and_nobody_has_died(
    cutter: tuple[Cutter, Bus], bus_settings: BusSettings, behind: Behind
) -> None:
    cut, bus = cutter
    jobs = {(await queued(bus)).id for _ in range(3)}
    cut.n_to_cut = 1
    with pytest.raises(BusUnavailable):
        await bus.queue.claim("w1", "m", Wanted(0, 2, 2))
    [waiting] = await bus.queue.claim("w1", "m", ANY)
    with keeper(bus_settings, "w1"):
        await eventually(lambda: behind.heard("w1"))
        for job_id in jobs:
            await behind.let_lease_run_out(job_id)
        claims = await bus.queue.claim("w2", "m", ANY, sweep=True)
    assert {claim.job.id for claim in claims} == jobs
    assert {claim.deaths for claim in claims} == {0}
    assert waiting.job.id in jobs


async def test_a_server_that_never_replies_is_unavailable(cutter: tuple[Cutter, Bus]) -> None:
    cut, bus = cutter
    cut.n_to_cut = 1000
    with pytest.raises(BusUnavailable):
        await queued(bus)
    cut.n_to_cut = 0
    await queued(bus)


async def test_a_batch_whose_replies_were_lost_is_done_once(cutter: tuple[Cutter, Bus]) -> None:
    cut, bus = cutter
    await walk(bus, Cutter(""))  # the server then knows all scripts, and each cut is of what is meant
    await walk(bus, cut)
    assert cut.n_cuts >= 9


async def walk(bus: Bus, cut: Cutter) -> None:
    """A batch goes its way while the first reply to each of its steps is lost."""

    def lose(n: int = 1) -> None:
        cut.n_to_cut = n

    lose()
    batch = await made(bus)
    [due] = await bus.batches.due()
    lose()
    hold = await bus.batches.hold(batch.id, due.epoch, 30.0)
    assert hold
    lose()
    assert await bus.batches.planned(hold, n_total=5, n_planned=5, model="m")
    for some in ([*lines(batch, [0, 1]), refused(batch, 2)], lines(batch, [3])):
        lose()
        assert await bus.batches.feed(hold, some) == (len(some), None, True)
    lose()
    await bus.batches.cancel(batch.id)
    lose()
    await bus.batches.recall(await bus.batches.flights(batch.id))
    lose()
    assert await bus.batches.finalize(hold, "cancelled")
    segment = Segment(number=0, n_error=5, error_bytes=5)
    lose()
    assert await bus.batches.collect(
        hold, segment, job_ids=jobs_of(batch, range(4)), n_completed=0, n_failed=5, unfed=Unfed(1, 4 * WIDTH, 5 * WIDTH)
    )
    lose()
    assert await bus.batches.finish(hold, RETENTION_S)
    cut.n_to_cut = 0
    found = await record(bus, batch)
    assert (found.status, found.n_fed, found.n_failed, found.n_segments) == (BatchStatus.CANCELLED, 5, 5, 1)
    assert [row.id for row in await bus.outbox.read()].count(batch.id) == 1
    assert await bus.queue.claim("w1", "m", ANY) == []
