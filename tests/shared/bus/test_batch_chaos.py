"""Whatever happens to those who work on a batch, each of its lines has one record in the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from shared.batches import Batch, BatchStatus, Segment
from shared.bus import Bus, Due, Hold, Unfed, Wanted, open_bus
from shared.bus.keys import Keys
from shared.errors import BusUnavailable
from shared.settings import BusSettings
from tests.faults.server import Server
from tests.shared.bus.bulk import RETENTION_S, SUCCEEDED, WIDTH, a_batch, job_of, lines, refused
from tests.shared.bus.conftest import Behind

N_BAD, N_PLANNED = 3, 90
IN_FLIGHT = 20
SHORT_S, LONG_S = 0.03, 0.15
"""Of a lease, and of a pause that outlasts it."""


class Killed(Exception):
    """Whoever works on the batch is gone in the middle of it."""


@dataclass
class Story:
    """One batch, those who work on it, and chance."""

    bus: Bus
    batch: Batch
    chance: random.Random
    store: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    """Lines whose records stand in a segment, by its number and its mark."""
    is_over: bool = False

    async def task(self) -> None:
        """Holds the batch whenever it is due, and does a step."""
        while not self.is_over:
            with suppress(BusUnavailable):
                for due in await self.bus.batches.due():
                    await self._take(due)
            await asyncio.sleep(0.002)

    async def worker(self, name: str) -> None:
        while not self.is_over:
            with suppress(BusUnavailable):
                for claim in await self.bus.queue.claim(name, "m", Wanted(0, 0, 4), sweep=True):
                    if self.chance.random() < 0.1:
                        await self.bus.queue.release(claim.lease)
                    else:
                        await self.bus.queue.finish(claim.lease, SUCCEEDED, claim.n_events + 1)
            await asyncio.sleep(0.002)

    async def accidents(self, behind: Behind) -> None:
        """The memory of some jobs is lost."""
        while not self.is_over:
            with suppress(BusUnavailable, ConnectionError):
                flights = await self.bus.batches.flights(self.batch.id)
                if flights:
                    await behind.client.delete(behind.keys.job(self.chance.choice(flights)))
            await asyncio.sleep(0.05)

    async def _take(self, due: Due) -> None:
        hold = await self.bus.batches.hold(due.batch_id, due.epoch, SHORT_S)
        if hold is None:
            return
        try:
            await self._step(hold)
        except Killed:
            return  # its lease is over some time
        await self.bus.batches.rest(hold, 0.0)

    async def _step(self, hold: Hold) -> None:
        batch = await self.bus.batches.record(hold.batch_id)
        assert batch is not None
        match batch.status:
            case BatchStatus.VALIDATING:
                await self._trouble()
                bad = await self._keep(
                    Segment(number=0, mark=hold.mark, n_error=N_BAD, error_bytes=N_BAD), range(-N_BAD, 0)
                )
                await self.bus.batches.planned(hold, n_total=N_BAD + N_PLANNED, n_planned=N_PLANNED, segment=bad)
            case BatchStatus.IN_PROGRESS:
                await self._feed(hold, batch)
                await self._collect(hold)
                if batch.n_fed == N_PLANNED:
                    await self.bus.batches.finalize(hold, "over")
            case BatchStatus.FINALIZING | BatchStatus.CANCELLING:
                await self.bus.batches.recall(await self.bus.batches.flights(batch.id))
                await self._collect(hold)
                await self._trouble()
                await self.bus.batches.finish(hold, RETENTION_S)

    async def _feed(self, hold: Hold, batch: Batch) -> None:
        numbers = range(batch.n_fed, min(N_PLANNED, batch.n_fed + IN_FLIGHT - batch.n_in_flight))
        some = [refused(batch, number) if number % 7 == 3 else lines(batch, [number])[0] for number in numbers]
        await self._trouble()
        for _ in range(self.chance.choice((1, 2))):
            await self.bus.batches.feed(hold, some)

    async def _collect(self, hold: Hold) -> None:
        batch = await self.bus.batches.record(hold.batch_id)
        assert batch is not None
        ended = [line.job_id for line in await self.bus.batches.ended(batch.id, self.chance.choice((5, 500)))]
        ended += await self.bus.batches.lost(batch.id)
        numbers = {job_of(batch, number): number for number in range(N_PLANNED)}
        done = [numbers[job_id] for job_id in ended]
        unfed = None
        if batch.is_stopping and not batch.status.is_ended:
            rest = range(batch.n_fed, min(N_PLANNED, batch.n_fed + 10) if batch.n_planned else 0)
            done += rest
            unfed = Unfed(len(rest), rest.start * WIDTH, rest.stop * WIDTH)
        if not done:
            return
        segment = Segment(number=batch.n_segments, mark=hold.mark, n_output=len(done), output_bytes=len(done))
        await self._keep(segment, done)
        for _ in range(self.chance.choice((1, 2))):
            await self.bus.batches.collect(hold, segment, job_ids=ended, n_completed=len(done), n_failed=0, unfed=unfed)

    async def _keep(self, segment: Segment, numbers: range | list[int]) -> Segment:
        await self._trouble()
        self.store[segment.number, segment.mark] = list(numbers)
        await self._trouble()
        return segment

    async def _trouble(self) -> None:
        """Now and then a pause that outlasts the lease, or the end."""
        what = self.chance.random()
        if what < 0.1:
            await asyncio.sleep(LONG_S * self.chance.random())
        elif what < 0.15:
            raise Killed


async def told(
    bus: Bus, behind: Behind, seed: int, *, cancels: bool = False, cuts: Callable[[], Awaitable[None]] | None = None
) -> Batch:
    """The batch in its end. `cuts` has the server lose its last moments, and returns when it is back."""
    chance = random.Random(seed)
    story = Story(bus, a_batch(bus), chance)
    await bus.batches.create(story.batch)
    async with asyncio.timeout(50), asyncio.TaskGroup() as people:
        for name in ("w1", "w2"):
            people.create_task(story.worker(name))
            people.create_task(story.task())
        people.create_task(story.task())
        people.create_task(story.accidents(behind))
        if cuts:
            for _ in range(3):
                await cuts()
        if cancels:
            await asyncio.sleep(0.3 * chance.random())
            await asyncio.gather(*(bus.batches.cancel(story.batch.id) for _ in range(2)))
        while not (batch := await bus.batches.record(story.batch.id)) or not batch.status.is_ended:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        story.is_over = True
    records = [
        number
        for segment in await bus.batches.segments(batch.id)
        for number in story.store[segment.number, segment.mark]
    ]
    expected = range(-N_BAD, N_PLANNED) if batch.n_planned else ()
    assert Counter(records) == Counter(expected)
    assert (batch.n_completed + batch.n_failed, batch.n_in_flight) == (len(records), 0)
    assert [(row.id, row.status) for row in await bus.outbox.read()] == [(batch.id, batch.status)]
    left = {name.decode() async for name in behind.client.scan_iter(f"{behind.keys.namespace}:*job_*")}
    assert not left
    return batch


def hemmed(settings: BusSettings) -> BusSettings:
    """The queue is full of half of what is to be in flight."""
    return settings.model_copy(update={"max_queued_per_tenant": IN_FLIGHT // 2})


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("cancels", [False, True])
async def test_each_line_has_one_record(bus_settings: BusSettings, behind: Behind, seed: int, cancels: bool) -> None:
    async with open_bus(hemmed(bus_settings), name="test") as bus:
        batch = await told(bus, behind, seed, cancels=cancels)
    was_cancelled = batch.cancelling_at is not None  # it may have been too late
    assert batch.status is (BatchStatus.CANCELLED if was_cancelled else BatchStatus.COMPLETED)


async def test_so_it_has_when_the_server_loses_its_last_moments_again_and_again(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        settings = hemmed(BusSettings(redis_url=server.url, lease_s=0.5))

        async def cut() -> None:
            await asyncio.sleep(0.1)
            n_kept = server.n_written
            await asyncio.sleep(0.1)
            server.kill()
            server.lose_tail(n_kept)
            await asyncio.to_thread(server.start)

        async with open_bus(settings, name="test") as bus, Redis.from_url(server.url) as client:
            behind = Behind(client, Keys(settings.namespace, 1))
            assert (await told(bus, behind, 1, cuts=cut)).status is BatchStatus.COMPLETED
