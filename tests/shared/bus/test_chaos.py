"""Workers that die, freeze and give back at random: every job ends once, and every follower sees every token once.

Without the fence the same run must go wrong, or it would prove nothing.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from shared.bus import Bus, Chunk, Claimed, Lease, Verdict, Wanted, open_bus
from shared.events import Finished, Tokens
from shared.jobs import JobStatus
from shared.settings import BusSettings
from tests.shared.bus.conftest import Behind, eventually, queued, tokens

LEASE_S = 0.3
N_JOBS, N_TOKENS = 40, 12


class Run:
    """One run on one bus: jobs, workers of all sorts, and a follower for each job."""

    def __init__(self, bus: Bus, behind: Behind, seed: int, *, is_fenced: bool) -> None:
        self.bus = bus
        self.behind = behind
        self.luck = random.Random(seed)
        self.is_fenced = is_fenced
        self.over = asyncio.Event()
        self.jobs: list[str] = []
        self.zombies: set[asyncio.Task[None]] = set()
        self.n_refused = 0

    async def play(self) -> list[list[tuple[int, str]]]:
        """What each follower saw: (number, text or status)."""
        self.jobs = [(await queued(self.bus, tenant=f"t{i % 3}")).id for i in range(N_JOBS)]
        workers = [asyncio.create_task(self.work(f"w{i}")) for i in range(4)]
        seen = await asyncio.gather(*map(self.follow, self.jobs))
        self.over.set()
        await asyncio.gather(*workers, *self.zombies)
        return seen

    async def follow(self, job_id: str) -> list[tuple[int, str]]:
        seen: list[tuple[int, str]] = []
        async with self.bus.log.follow(job_id) as reader:
            async for number, event in reader:
                if isinstance(event, Tokens):
                    seen.append((number or 0, event.text))
                elif isinstance(event, Finished):
                    seen.append((number or 0, event.status))
        return seen

    async def work(self, name: str) -> None:
        while not self.over.is_set():
            claims = await self.bus.queue.claim(name, "m", Wanted(0, 3, 3), sweep=True)
            if not claims:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.over.wait(), LEASE_S / 20)
            await asyncio.gather(*map(self.generate, claims))

    async def generate(self, claim: Claimed) -> None:
        said = len(await self.bus.log.read(claim.job.id))
        while said < N_TOKENS:
            match self.luck.choices(("go on", "die", "freeze", "release"), (40, 1, 1, 1))[0]:
                case "die":
                    return
                case "freeze":
                    zombie = asyncio.create_task(self.awaken(claim.lease, said))
                    self.zombies.add(zombie)
                    return
                case "release":
                    await self.bus.queue.release(claim.lease)
                    return
            said += 1
            if not await self.say(claim.lease, said):
                return
        await self.bus.queue.finish(claim.lease, Finished(status="succeeded"), N_TOKENS + 1)

    async def awaken(self, lease: Lease, said: int) -> None:
        """A worker that was frozen until its job had gone to another goes on as if nothing had happened."""

        async def is_gone() -> bool:
            return await self.behind.field(lease.job_id, "epoch") != str(lease.epoch) or self.over.is_set()

        await eventually(is_gone, within_s=20)
        for number in range(said + 1, N_TOKENS + 1):
            self.n_refused += not await self.say(lease, number)
        await self.bus.queue.finish(lease, Finished(status="succeeded"), N_TOKENS + 1)

    async def say(self, lease: Lease, number: int) -> bool:
        if not self.is_fenced:
            # As a bus would without the comparison: whoever writes counts as the holder, at the end of the log.
            holder = await self.behind.field(lease.job_id, "lease")
            n_events = int(await self.behind.field(lease.job_id, "events") or 0)
            chunk = Chunk(Lease(lease.job_id, holder or lease.token), n_events + 1, tokens(str(number)))
        else:
            chunk = Chunk(lease, number, tokens(str(number)))
        [verdict] = await self.bus.queue.append([chunk])
        return verdict is not Verdict.LOST


def is_exact(seen: list[tuple[int, str]]) -> bool:
    """Each token once, in order, then the ending."""
    return all(number == i and text == str(i) for i, (number, text) in enumerate(seen[:-1], 1))


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("seed", [1, 2])
async def test_every_job_ends_once_with_every_token_once(
    bus_settings: BusSettings, behind: Behind, partitions: int, seed: int
) -> None:
    settings = bus_settings.model_copy(update={"lease_s": LEASE_S, "partitions": partitions})
    async with open_bus(settings, name="test") as bus:
        run = Run(bus, behind, seed, is_fenced=True)
        for seen, job_id in zip(await run.play(), run.jobs, strict=True):
            record = await bus.queue.record(job_id)
            assert record
            assert is_exact(seen)
            assert seen[-1] == (len(seen), record.status)
            if record.status is JobStatus.SUCCEEDED:
                assert len(seen) == N_TOKENS + 1
            else:
                assert record.failure and record.failure.code == "worker_died"
            assert sum("end" in fields for _, fields in await behind.log(job_id)) == 1
        assert run.n_refused > 0
        assert await bus.queue.claim("w9", "m", Wanted(9, 9, 9), sweep=True) == []
        await bus.queue.reap()
        for partition in range(partitions):
            assert await behind.client.keys(f"{behind.keys.prefix(partition)}q:*") == []


async def test_without_the_fence_the_same_run_goes_wrong(bus_settings: BusSettings, behind: Behind) -> None:
    async with open_bus(bus_settings.model_copy(update={"lease_s": LEASE_S}), name="test") as bus:
        run = Run(bus, behind, 1, is_fenced=False)
        assert not all(map(is_exact, await run.play()))
