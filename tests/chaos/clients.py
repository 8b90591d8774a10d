"""Clients of the bus, as the API is one: they ask, follow, go away, come back, cancel, and never give up.

What they are promised and what they see goes into the history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from api.tasks import outbox
from shared.bus import Bus, OutboxRow, Receipt
from shared.errors import BusUnavailable
from shared.jobs import Completion, Job
from tests.chaos.engine import POISON
from tests.chaos.history import History, Promise, Witness
from tests.chaos.orders import Order

MODEL = "scripted"
PAUSE_S = 0.05
REAP_EVERY_S = 0.4

T = TypeVar("T")


class Clients:
    def __init__(self, bus: Bus, history: History, seed: int) -> None:
        self._bus = bus
        self._history = history
        self._seed = seed
        self._acknowledged: set[str] = set()

    async def place(self, orders: Sequence[Order]) -> None:
        """Each at its time; returns when everybody has seen the end of what they wanted."""
        async with asyncio.TaskGroup() as group:
            for order in orders:
                group.create_task(self._place(order))

    async def keep_house(self) -> None:
        """What the tasks role does, until cancelled: reaps, and tells of endings."""

        async def tell(_: Bus, rows: Sequence[OutboxRow]) -> None:
            self._history.rows.update(rows)

        async with asyncio.TaskGroup() as group:
            group.create_task(_for_ever(self._bus.queue.reap, REAP_EVERY_S))
            group.create_task(_for_ever(lambda: outbox.bridge(self._bus, [tell]), PAUSE_S))

    async def _place(self, order: Order) -> None:
        await asyncio.sleep(max(0.0, order.at_s - self._history.now_s()))
        luck = random.Random(f"client {self._seed} {order.number}")
        try:
            if order.is_abandoned:
                await self._abandon(order, luck)
            elif order.idempotency_key is None:
                job = self._job(order)
                await asyncio.gather(*self._readers(order, job.id), self._ask_and_wait(order, job))
            else:
                job_ids = await asyncio.gather(*(self._ask_with_key(order, luck) for _ in range(order.n_asks)))
                await asyncio.gather(*self._readers(order, job_ids[0]), self._wait(order, job_ids[0]))
        except Exception as error:  # whatever it was, a client must not meet it
            self._history.complaints.append(f"order {order.number}: {type(error).__name__}: {error}")

    async def _worker(self, order: Order) -> str | None:
        """The one that an order is for: any that was seen lately, dead or alive."""
        if not order.is_choosy:
            return None
        workers = await _insist(self._bus.presence.workers)
        return workers[order.number % len(workers)].id if workers else None

    def _job(self, order: Order) -> Job:
        job = Job(
            id=self._bus.queue.new_job_id(order.idempotency_key, order.tenant),
            model=MODEL,
            request=Completion(
                prompts=(POISON if order.is_poison else "speak",),
                n_predict=order.n_tokens,
                id_slot=order.number if order.is_choosy else -1,
            ),
            lane=order.lane,
            tenant=order.tenant,
            deadline_s=order.deadline_s,
            is_durable=order.is_durable,
        )
        self._history.offered[job.id] = order
        return job

    async def _abandon(self, order: Order, luck: random.Random) -> None:
        """Ask, and be gone before the answer: then there is such a job, or there is none."""
        worker = await self._worker(order)
        asking = asyncio.create_task(self._bus.queue.enqueue(self._job(order), worker=worker))
        await asyncio.wait((asking,), timeout=luck.uniform(0, 0.01))
        asking.cancel()
        with suppress(BusUnavailable, asyncio.CancelledError):
            self._note(order, await asking)

    async def _ask_and_wait(self, order: Order, job: Job) -> None:
        """Without a key the same job is sent again until somebody says that it is there."""
        worker = await self._worker(order)
        receipt = await _insist(lambda: self._bus.queue.enqueue(job, worker=worker))
        self._note(order, receipt)
        await self._wait(order, receipt.job_id)

    async def _ask_with_key(self, order: Order, luck: random.Random) -> str:
        """With a key every try brings another job, as a request that is sent again does."""
        await asyncio.sleep(luck.choice((0.0, 0.0, luck.uniform(0, 1.0))))
        worker = await self._worker(order)
        receipt = await _insist(
            lambda: self._bus.queue.enqueue(self._job(order), idempotency_key=order.idempotency_key, worker=worker)
        )
        self._note(order, receipt)
        return receipt.job_id

    def _note(self, order: Order, receipt: Receipt) -> None:
        self._acknowledged.add(receipt.job_id)
        self._history.promises.append(Promise(order, receipt.job_id))

    async def _wait(self, order: Order, job_id: str) -> None:
        """Cancel when it is time to, then look at the record until it says that the job has ended."""
        if order.cancel_after_s is not None:
            await asyncio.sleep(order.cancel_after_s)
            self._history.cancelled.add(job_id)
            record = await _insist(lambda: self._bus.queue.cancel(job_id))
            if record.status.is_ended:
                self._history.witnesses.append(Witness(job_id, record.status, "cancel"))
        while True:
            record = await _insist(lambda: self._bus.queue.record(job_id))
            if record is None:
                self._history.complaints.append(f"{job_id} was acknowledged, and now there is no such job")
                return
            if record.status.is_ended:
                self._history.witnesses.append(Witness(job_id, record.status, "record"))
                return
            await asyncio.sleep(0.3)

    def _readers(self, order: Order, job_id: str) -> list[Awaitable[None]]:
        return [
            self._follow(job_id, random.Random(f"reader {self._seed} {order.number} {number}"))
            for number in range(order.n_readers)
        ]

    async def _follow(self, job_id: str, luck: random.Random) -> None:
        """Read to the end, but not in one go: leave now and then, and come back to where it was or to before."""
        after = 0
        while True:
            session = self._history.begin_session(job_id, after)
            patience = luck.choice((None, None, 1, 5, 20))
            with suppress(BusUnavailable):
                is_expected = job_id not in self._acknowledged
                async with self._bus.log.follow(job_id, after=after, expects=is_expected) as reader:
                    async for number, event in reader:
                        session.hear(number, event)
                        if patience is not None and len(session.heard) >= patience:
                            break
            if session.has_ended:
                return
            after = luck.choice((session.last_number, session.last_number, luck.randint(0, session.last_number)))
            await asyncio.sleep(luck.uniform(0, 0.1))


async def _insist(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except BusUnavailable:
            await asyncio.sleep(PAUSE_S)


async def _for_ever(call: Callable[[], Awaitable[object]], pause_s: float) -> None:
    while True:
        with suppress(BusUnavailable):
            await call()
        await asyncio.sleep(pause_s)
