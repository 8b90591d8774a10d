"""Workers that share a bus with their test, and who listens to their jobs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shared.bus import Bus, LeaseKeeper, Reader
from shared.errors import EngineFailed
from shared.events import Answer, Failure, Finished, Tokens
from shared.jobs import Job, Lane, Request, Sampling
from shared.settings import BusSettings
from tests.worker.engine.harness import config
from worker.agreement import agree
from worker.engine import Engine, SequenceKey
from worker.handover import Handover
from worker.held import HeldJobs
from worker.intake import Registrar
from worker.presence import Announcer
from worker.publisher import Publisher
from worker.puller import Hands, Puller, Station
from worker.rules import Rules

WILD = Sampling(seed=7, temperature=1.5, top_k=0, min_p=0.0, ignore_eos=True)
PATIENCE_S = 30


class Worker:
    """All of a worker but its process, which can end between any two tokens as if it had been killed."""

    def __init__(self, bus: Bus, settings: BusSettings, model: Path, name: str, **engine: Any) -> None:
        self.held = HeldJobs()
        self.publisher = Publisher(bus.queue, self.held, name)
        # In 32 bits a text does not depend on who is in the batch.
        exact = {"n_ctx": 8192, "cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off"}
        self.engine = Engine(config(model, **exact | engine), self.publisher.post)
        loop = asyncio.get_running_loop()
        self._keeper = LeaseKeeper(
            settings,
            name,
            is_alive=lambda: True,
            on_cancel=lambda job_id: loop.call_soon_threadsafe(self.publisher.cancel, job_id) and None,
            on_lost=lambda lease: loop.call_soon_threadsafe(self.publisher.lose, lease) and None,
        )
        self.publisher.attach(self.engine, self._keeper)
        self._announcer = Announcer(bus, name, ("m",), "m.gguf", self.engine.config.n_slots)
        self._bus, self._name, self._lease_s = bus, name, settings.lease_s
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.engine.start)
        rules = Rules(
            n_ctx=self.engine.n_ctx_slot,
            inputs=self.engine.input_rules,
            can_generate=self.engine.can_generate,
            n_slots=self.engine.config.n_slots,
        )
        registrar = Registrar(self.engine.model, rules, adapters=self.engine.adapters, vision=self.engine.vision)
        await agree(self._bus.presence, self.engine.adapters, "m")
        hands = Hands(self.engine, self.held, self.publisher, self._keeper)
        station = Station(self._name, "m", self.engine.config.n_slots, self._lease_s)
        self.puller = Puller(self._bus.queue, self._bus.log, hands, registrar, station)
        self.handover = Handover(self._bus.presence, hands, self._name, on_given=self.puller.demand.rest)
        self._keeper.start()
        self._announcer.ready(self.engine, registrar.dialect)
        work = (
            self.publisher.run(),
            self.puller.run(),
            self.puller.listen(),
            self._announcer.run(),
            self.handover.run(),
        )
        self._tasks = [asyncio.create_task(each) for each in work]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()

    async def kill(self) -> None:
        """Not one more word; its leases run out."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._keeper.stop)
        await asyncio.to_thread(self.engine.stop)

    def fail(self, job_id: str, index: int) -> None:
        """As when the engine finds a sequence at fault."""
        held = self.held.get(job_id)
        assert held
        failure = Failure.of(EngineFailed("its logits are not numbers"))
        self.publisher.post([(SequenceKey(job_id, index, held.lease.mark), failure)])

    async def has_free_slots(self, n_slots: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.engine.free_slots() < n_slots or len(self.held):  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.005)


class Listener:
    """Hears a job, and keeps what was heard of each sequence."""

    def __init__(self, job: Job, reader: Reader) -> None:
        self.job = job
        self._reader = reader
        self.tokens: defaultdict[int, list[Tokens]] = defaultdict(list)
        self.numbers: list[int] = []
        self.finished: Finished | None = None

    async def until(self, is_enough: Callable[[], bool]) -> Self:
        """Or up to the end."""
        async for number, event in self._reader:
            if number is not None:
                self.numbers.append(number)
            if isinstance(event, Tokens):
                self.tokens[event.index].append(event)
            if isinstance(event, Finished):
                self.finished = event
            if is_enough():
                break
        return self

    async def to_the_end(self) -> Self:
        return await self.until(lambda: False)

    @property
    def answers(self) -> list[Answer]:
        assert self.finished
        return [part for part in self.finished.parts if isinstance(part, Answer)]

    def text(self, index: int) -> str:
        return "".join(event.text for event in self.tokens[index])


@asynccontextmanager
async def queued(
    bus: Bus, request: Request, lane: Lane = Lane.INTERACTIVE, *, worker: str | None = None
) -> AsyncIterator[Listener]:
    job = Job(id=bus.queue.new_job_id(), model="m", request=request, lane=lane)
    async with bus.log.follow(job.id, expects=True) as reader, asyncio.timeout(PATIENCE_S):
        await bus.queue.enqueue(job, worker=worker)
        yield Listener(job, reader)


async def heard_of(bus: Bus, request: Request, *, worker: str | None = None) -> Listener:
    async with queued(bus, request, worker=worker) as listener:
        return await listener.to_the_end()
