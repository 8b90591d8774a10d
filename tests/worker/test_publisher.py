"""What the engine says, on its way to a real log."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.bus import Bus, Chunk, Claimed, Lease, Verdict, Wanted, open_bus
from shared.errors import BusUnavailable
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


async def test_what_is_given_back_has_all_that_was_said_before_and_nothing_of_what_is_said_after(bus: Bus) -> None:
    job = Held(await claimed_job(bus, Lane.BULK), is_taken_in=True)
    async with publishing(bus, job) as publisher:
        publisher.post([(key(job.claimed), said(1, "a")), (key(job.claimed), said(2, "b"))])
        publisher.give_back(job)
        async for wake in bus.queue.wakes("w2", "m"):
            if wake.kind == "released" or await is_queued(bus, job):
                break
        publisher.post([(key(job.claimed), said(3, "c")), (key(job.claimed), answer("abc"))])
    assert await logged(bus, job.claimed) == [(1, "a"), (2, "b")]
    [again] = await bus.queue.claim("w2", "m", Wanted(0, 0, 1), sweep=True)
    assert (again.attempt, again.deaths, again.n_events, again.n_given_back) == (1, 0, 2, 1)


async def test_what_ended_before_it_could_be_given_back_has_ended(bus: Bus) -> None:
    job = Held(await claimed_job(bus, Lane.BULK), is_taken_in=True)
    async with publishing(bus, job) as publisher:
        publisher.post([(key(job.claimed), said(1, "a")), (key(job.claimed), answer("a"))])
        publisher.give_back(job)
    record = await bus.queue.record(job.job.id)
    assert record and record.status is JobStatus.SUCCEEDED


async def test_what_was_cancelled_ends_instead_of_being_given_back(bus: Bus) -> None:
    job = Held(await claimed_job(bus, Lane.BULK), is_taken_in=True)
    async with publishing(bus, job) as publisher:
        await bus.queue.cancel(job.job.id)
        publisher.give_back(job)
        publisher.cancel(job.job.id)
    record = await bus.queue.record(job.job.id)
    assert record and record.status is JobStatus.CANCELLED


async def test_giving_back_what_is_anothers_by_now_takes_nothing_from_it(bus: Bus) -> None:
    job = Held(await claimed_job(bus, Lane.BULK), is_taken_in=True)
    await bus.queue.release(job.lease)
    [theirs] = await bus.queue.claim("w2", "m", Wanted(0, 0, 1), sweep=True)
    async with publishing(bus, job) as publisher:
        publisher.post([(key(job.claimed), said(1, "a"))])
        publisher.give_back(job)
    assert await bus.queue.append([Chunk(theirs.lease, 1, (said(2, "b"),))]) == [Verdict.OK]
    assert await logged(bus, theirs) == [(1, "b")]


async def test_what_cannot_be_given_back_is_let_go_and_its_lease_runs_out(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def release(lease: Lease) -> bool:
        raise BusUnavailable("the server is away")

    job = Held(await claimed_job(bus, Lane.BULK), is_taken_in=True)
    with monkeypatch.context() as patch:
        patch.setattr(bus.queue, "release", release)
        async with publishing(bus, job) as publisher:
            publisher.give_back(job)
    assert await bus.queue.append([Chunk(job.lease, 1)]) == [Verdict.OK]


async def is_queued(bus: Bus, held: Held) -> bool:
    record = await bus.queue.record(held.job.id)
    return record is not None and record.status is JobStatus.QUEUED


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
