"""The clock of the server's machine is set forward and back. Fault 17 of docs/faults.md."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from time import time as wall_clock

import pytest

from shared.bus import Bus, Chunk, Claimed, LeaseKeeper, Verdict, Wanted, open_bus
from shared.events import Finished, Tokens
from shared.jobs import Completion, Job, JobStatus
from shared.settings import BusSettings
from tests.faults.server import Server

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
LEASE_S = 0.6
DEADLINE_S = 3600.0


class Clock:
    """Of the server's process; its monotonic clock stays true, as on a machine whose time is set."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(0)
        self.environment = {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, off_s: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{off_s:+d}s")
        new.rename(self._file)


@pytest.fixture
def clock() -> Iterator[tuple[Clock, Server]]:
    if not LIBRARIES:
        pytest.skip("needs libfaketime, which the Debian package faketime has")
    with tempfile.TemporaryDirectory(prefix="ss") as folder:
        clock = Clock(Path(folder))
        with Server(Path(folder), environment=clock.environment) as server:
            yield clock, server


class Worker:
    """Claims whatever it can get, keeps its leases, and says the numbers of its jobs' events."""

    def __init__(self, bus: Bus, settings: BusSettings, name: str) -> None:
        self.name = name
        self.holds: dict[str, Claimed] = {}
        self.n_handed: Counter[str] = Counter()
        self._bus = bus
        self.keeper = LeaseKeeper(
            settings,
            name,
            is_alive=lambda: True,
            on_cancel=self._ignore,
            on_lost=lambda lease: self._ignore(lease.job_id),
        )

    async def work(self) -> None:
        """One look for jobs, and one word of each."""
        for claim in await self._bus.queue.claim(self.name, "m", Wanted(0, 2, 2), sweep=True):
            assert claim.deaths == 0, "a clock that is set kills nobody"
            assert claim.deadline_at - claim.enqueued_at == pytest.approx(DEADLINE_S)
            self.n_handed[claim.job.id] += 1
            self.holds[claim.job.id] = claim
            self.keeper.hold(claim.lease)
        for job_id, claim in list(self.holds.items()):
            number = len(await self._bus.log.read(job_id)) + 1
            chunk = Chunk(claim.lease, number, (Tokens(ids=(1,), text=str(number)),))
            if await self._bus.queue.append([chunk]) == [Verdict.LOST]:
                del self.holds[job_id]

    def _ignore(self, job_id: str) -> None:
        """The next word shows it."""


@pytest.mark.parametrize("offsets", [(600, 0), (-600, 0)], ids=["forward", "back"])
async def test_17_a_clock_that_is_set_kills_nobody_and_costs_no_word(
    clock: tuple[Clock, Server], offsets: tuple[int, int]
) -> None:
    time, server = clock
    settings = BusSettings(redis_url=server.url, lease_s=LEASE_S)
    async with open_bus(settings, name="test") as bus:
        jobs = [
            Job(id=bus.queue.new_job_id(), model="m", request=Completion(prompts=("x",)), deadline_s=DEADLINE_S)
            for _ in range(4)
        ]
        for job in jobs:
            await bus.queue.enqueue(job)
        workers = [Worker(bus, settings, name) for name in ("w1", "w2")]
        with workers[0].keeper, workers[1].keeper:
            for off_s in (0, *offsets):
                time.set(off_s)
                assert server.client.time()[0] - wall_clock() == pytest.approx(off_s, abs=5)
                until = monotonic() + 1.5 * LEASE_S
                while monotonic() < until:
                    for worker in workers:
                        await worker.work()
                    await asyncio.sleep(LEASE_S / 50)
            for worker in workers:
                for job_id, claim in worker.holds.items():
                    number = len(await bus.log.read(job_id)) + 1
                    assert await bus.queue.finish(claim.lease, Finished(status="succeeded"), number)
        handed = workers[0].n_handed + workers[1].n_handed
        for job in jobs:
            assert handed[job.id] <= 1 + len(offsets)
            said = await bus.log.read(job.id)
            assert [(number, tokens.text) for number, tokens in said] == [(n, str(n)) for n in range(1, len(said) + 1)]
            record = await bus.queue.record(job.id)
            assert record and record.status is JobStatus.SUCCEEDED
