"""What the engine says, on its way to a real log."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.bus import Bus, Claimed, Wanted, open_bus
from shared.events import Accepted, Answer, StopType, Tokens
from shared.jobs import Completion, Job, JobStatus, Lane
from shared.settings import BusSettings
from worker.engine import GenerateTask, SequenceKey
from worker.held import Held, HeldJobs
from worker.publisher import Publisher


@pytest.fixture
async def bus(embedded_settings: BusSettings) -> AsyncIterator[Bus]:
    async with open_bus(embedded_settings, name="test") as opened:
        yield opened


async def claimed_job(bus: Bus, lane: Lane = Lane.INTERACTIVE) -> Claimed:
    job = Job(id=bus.queue.new_job_id(), model="m", request=Completion(prompts=("Hi",)), lane=lane)
    await bus.queue.enqueue(job)
    [claimed] = await bus.queue.claim("w", "m", Wanted(0, 1, 1))
    return claimed


@asynccontextmanager
async def publishing(bus: Bus, *jobs: Claimed | Held) -> AsyncIterator[Publisher]:
    held = HeldJobs()
    publisher = Publisher(bus.queue, held, "w")
    for job in jobs:
        held.add(job if isinstance(job, Held) else Held(job))
    async with asyncio.TaskGroup() as group:
        group.create_task(publisher.run())
        yield publisher
        publisher.close()


def key(claimed: Claimed, mark: int | None = None) -> SequenceKey:
    return SequenceKey(claimed.job.id, 0, claimed.lease.mark if mark is None else mark)


def said(number: int, text: str) -> Tokens:
    return Tokens(ids=(number,), text=text)


def answer(text: str) -> Answer:
    return Answer(text=text, ids=(1, 2), prompt="Hi", prompt_tokens=1, stop_type=StopType.EOS, seed=1)


async def logged(bus: Bus, claimed: Claimed) -> list[tuple[int, str]]:
    return [(number, tokens.text) for number, tokens in await bus.log.read(claimed.job.id)]


@pytest.mark.parametrize("lane", Lane)
async def test_what_was_said_is_in_the_log_before_the_ending(bus: Bus, lane: Lane) -> None:
    job = await claimed_job(bus, lane)
    async with bus.log.follow(job.job.id) as reader, publishing(bus, job) as publisher:
        publisher.say(job.lease, Accepted(prompt_tokens=1, n_ctx=8))
        publisher.post([(key(job), said(1, "a")), (key(job), said(2, "b"))])
        publisher.post([(key(job), answer("ab"))])
        heard = [event async for event in reader]
    assert [number for number, _ in heard] == [None, 1, 2, 3]
    record = await bus.queue.record(job.job.id)
    assert record and record.status is JobStatus.SUCCEEDED


async def test_words_of_an_earlier_attempt_are_not_taken_for_this_one(bus: Bus) -> None:
    job = await claimed_job(bus)
    async with publishing(bus, job) as publisher:
        publisher.post([(key(job, mark=0), said(7, "stale")), (key(job), said(1, "a"))])
        publisher.post([(key(job, mark=0), answer("stale")), (key(job), said(2, "b"))])
    assert await logged(bus, job) == [(1, "a"), (2, "b")]
    record = await bus.queue.record(job.job.id)
    assert record and record.status is JobStatus.RUNNING


async def test_bulk_is_sent_as_a_checkpoint_and_all_of_it_when_the_publisher_closes(bus: Bus) -> None:
    job = await claimed_job(bus, Lane.BULK)
    async with publishing(bus, job) as publisher:
        for number in range(10):
            publisher.post([(key(job), said(number, str(number)))])
    assert await logged(bus, job) == [(number + 1, str(number)) for number in range(10)]


async def test_a_job_is_cancelled_while_its_prompt_is_still_being_read(bus: Bus) -> None:
    job = await claimed_job(bus)
    async with publishing(bus, job) as publisher:
        publisher.cancel("job_0_unknown")
        publisher.cancel(job.job.id)
    record = await bus.queue.record(job.job.id)
    assert record and record.status is JobStatus.CANCELLED


async def test_a_job_is_cancelled_while_the_engine_has_none_of_its_sequences_left(bus: Bus) -> None:
    job = await claimed_job(bus)
    next_task = GenerateTask(SequenceKey(job.job.id, 1, job.lease.mark), (1,), Completion(prompts=("Hi",)), seed=1)
    async with publishing(bus, Held(job, expected=2, is_taken_in=True, ahead=deque([next_task]))) as publisher:
        publisher.cancel(job.job.id)
    record = await bus.queue.record(job.job.id)
    assert record and record.status is JobStatus.CANCELLED
