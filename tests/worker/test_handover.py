"""Bulk that has no slot where it is, and another worker that has one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from shared.bus import Bus, ModelCard, SlotState, WorkerState
from shared.jobs import Completion, Lane
from tests.worker.crew import PATIENCE_S, WILD, Listener, Worker, heard_of, queued
from worker.handover import share_of_idle

BULK = Completion(prompts=("Once upon a time",), n_predict=400, sampling=WILD)
TALK = Completion(prompts=("Tell me everything",), n_predict=100_000, shift=True, sampling=WILD)
"""Somebody who keeps a slot until the test lets go of it."""


@pytest.fixture(autouse=True)
def quick_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers tell more often how they do, and what bulk has said."""
    monkeypatch.setattr("worker.presence.EVERY_S", 0.02)
    monkeypatch.setattr("worker.publisher.BULK_WAIT_S", 0.01)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """They look for each other all the time, and have no patience."""
    monkeypatch.setattr("worker.handover.EVERY_S", 0.02)
    monkeypatch.setattr("worker.handover.PATIENCE_S", 0.05)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """They look for each other when the test asks them to alone, and have no patience."""
    monkeypatch.setattr("worker.handover.EVERY_S", 1e6)
    monkeypatch.setattr("worker.handover.PATIENCE_S", 0.0)


@asynccontextmanager
async def talking(bus: Bus) -> AsyncIterator[Listener]:
    """A person who has a slot."""
    async with queued(bus, TALK) as person:
        yield await person.until(lambda: bool(person.tokens))
        await bus.queue.cancel(person.job.id)


@asynccontextmanager
async def begun(bus: Bus, request: Completion = BULK, *, n_begun: int = 1) -> AsyncIterator[Listener]:
    """Bulk of which so many sequences have said something."""
    async with queued(bus, request, Lane.BULK) as bulk:
        yield await bulk.until(lambda: len(bulk.tokens) >= n_begun)


async def seen(bus: Bus, *idle: int) -> None:
    """So many slots would be had at once, by the workers' own words."""
    async with asyncio.timeout(PATIENCE_S):
        while [_n_idle(each) for each in await bus.presence.workers()] != [*idle]:  # noqa: ASYNC110 - it is a key
            await asyncio.sleep(0.005)


def _n_idle(worker: WorkerState) -> int:
    return 0 if worker.n_waiting else sum(not slot.is_processing for slot in worker.slots)


async def stuck(worker: Worker, n_sequences: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(worker.engine.snapshot().stuck) != n_sequences:  # noqa: ASYNC110 - the engine tells nobody
            await asyncio.sleep(0.005)


async def is_as_undisturbed(bus: Bus, heard: Listener, request: Completion) -> bool:
    """Each event once and in order, each text what it is when nobody comes in between, and no attempt is burnt."""
    alone = await heard_of(bus, request)
    record = await bus.queue.record(heard.job.id)
    assert record and record.attempts == 1
    assert heard.numbers == list(range(1, len(heard.numbers) + 1))
    texts = [answer.text for answer in alone.answers]
    return texts == [answer.text for answer in heard.answers] == [heard.text(index) for index in range(request.n)]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("n", "n_begun"),
    [(1, 1), pytest.param(3, 2, marks=pytest.mark.slow)],
    ids=["one sequence", "one ended and one has not begun"],
)
async def test_bulk_that_people_keep_from_its_slot_goes_on_at_an_idle_worker_at_its_next_token(
    bus: Bus, hire: Callable[..., Any], n: int, n_begun: int
) -> None:
    request = BULK.model_copy(update={"n": n})
    await hire("w1", n_slots=1)
    with capture_logs() as lines:
        async with begun(bus, request, n_begun=n_begun) as bulk:
            async with talking(bus):
                second = await hire("w2", n_slots=1)
                await bulk.until(lambda: second.held.get(bulk.job.id) is not None)
            await bulk.to_the_end()
    assert bulk.finished and bulk.finished.worker == "w2"
    given_back = [line for line in lines if line["event"] == "given back"]
    assert len(given_back) == 1 and given_back[0]["tokens"] > 0
    assert await is_as_undisturbed(bus, bulk, request)


@pytest.mark.usefixtures("asked")
async def test_bulk_that_nobody_else_could_go_on_with_stays_and_ends_where_it_is(
    bus: Bus, hire: Callable[..., Any]
) -> None:
    worker = await hire("w1", n_slots=1)
    async with begun(bus) as bulk:
        async with talking(bus):
            await stuck(worker, 1)
            assert await worker.handover.look() == 0
            await hire("w2", n_slots=1, n_ctx=4096)  # in which it might not fit
            await seen(bus, 0, 1)
            assert await worker.handover.look() == 0
        await bulk.to_the_end()
    assert bulk.finished and bulk.finished.worker == "w1"


@pytest.mark.usefixtures("asked")
async def test_between_workers_that_are_full_of_people_bulk_is_not_passed_to_and_fro(
    bus: Bus, hire: Callable[..., Any]
) -> None:
    first = await hire("w1", n_slots=1)
    async with begun(bus) as bulk, talking(bus):
        await stuck(first, 1)
        second = await hire("w2", n_slots=1)
        async with talking(bus):
            await seen(bus, 0, 0)
            assert await first.handover.look() == 0
        await seen(bus, 0, 1)
        assert await first.handover.look() == 1
        await stuck(first, 0)
        assert first.puller.demand.wanted(may_share=True).bulk == 0
        await bulk.until(lambda: second.held.get(bulk.job.id) is not None)
        async with talking(bus):
            await stuck(second, 1)
            await seen(bus, 0, 0)
            assert [await worker.handover.look() for worker in (first, second)] == [0, 0]
        await bulk.to_the_end()
    assert bulk.finished and bulk.finished.worker == "w2"
    assert await is_as_undisturbed(bus, bulk, BULK)


@pytest.mark.usefixtures("asked")
async def test_a_job_stays_while_one_of_its_sequences_has_a_slot(bus: Bus, hire: Callable[..., Any]) -> None:
    first = await hire("w1", n_slots=2)
    async with begun(bus, BULK.model_copy(update={"n": 2, "n_predict": 1500})) as bulk, talking(bus):
        await stuck(first, 1)
        await hire("w2", n_slots=2)
        await seen(bus, 0, 2)
        assert await first.handover.look() == 0
        await bus.queue.cancel(bulk.job.id)


def worker(name: str, *, idle: int = 0, **fields: Any) -> WorkerState:
    card = {"name": "m", "path": f"/{name}.gguf", "n_ctx_train": 9, "n_vocab": 9, "n_embd": 9, "n_params": 9, "size": 9}
    n_ctx = fields.pop("n_ctx", 64)
    slots = tuple(SlotState(id=slot, is_processing=slot >= idle, n_ctx=n_ctx) for slot in range(4))
    return WorkerState(
        **{
            "id": name,
            "model": ModelCard.model_validate(card | {"n_ctx": n_ctx}),
            "status": "ready",
            "started_at": 0,
            "slots": slots,
            "n_slots": 4,
            "host": name,
            "pid": 1,
            "build": "",
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("others", "share"),
    [
        ([], 0),
        ([worker("a", idle=3)], 3),
        ([worker("a", idle=3), worker("b", idle=1)], 4),
        ([worker("a", idle=3), worker("b", n_parked=2)], 1.5),
        ([worker("a", idle=3, n_waiting=1)], 0),
        ([worker("a", idle=3, n_parked=1)], 0),
        ([worker("a", idle=3, status="draining")], 0),
        ([worker("a", idle=3, status="loading")], 0),
        ([worker("a", idle=3, n_ctx=32), worker("b", idle=2, n_ctx=128)], 0),
        ([worker("a", idle=3).model_copy(update={"model": worker("a").model.model_copy(update={"name": "n"})})], 0),
    ],
)
def test_idle_slots_count_where_bulk_would_start_at_once(others: list[WorkerState], share: float) -> None:
    own = worker("own", idle=2, n_parked=1)
    assert share_of_idle([own, *others], "own") == share
    assert share_of_idle(others, "own") == 0
