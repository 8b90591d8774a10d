"""Embeddings and reranking of whole workers: jobs, answers, and what a worker says that it can do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.bus import Bus, ModelCard
from shared.events import Failure, Score, Vector
from shared.jobs import Completion, Embedding, Lane, Request, Rerank
from shared.settings import BusSettings
from tests.models import write_reranker_model
from tests.worker.crew import PATIENCE_S, WILD, Listener, Worker, heard_of, queued

Hire = Callable[..., Any]

STREAM = Completion(prompts=("Once upon a time",), n_predict=4000, sampling=WILD)
MANY = Embedding(inputs=("some words to embed",) * 300)


async def part_of(bus: Bus, request: Request) -> Any:
    finished = (await heard_of(bus, request)).finished
    assert finished is not None and finished.failure is None, finished
    return finished.parts


async def failure_of(bus: Bus, request: Request) -> Failure:
    finished = (await heard_of(bus, request)).finished
    assert finished is not None and finished.failure is not None
    return finished.failure


async def card(bus: Bus) -> ModelCard:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for worker in await bus.presence.workers():
                if worker.status == "ready":
                    return worker.model


async def test_a_worker_that_does_not_pool_has_a_row_for_each_token(bus: Bus, hire: Hire) -> None:
    await hire(pooling="none")
    vectors = await part_of(bus, Embedding(inputs=("hello", "ab")))
    assert [vector.rows().shape for vector in vectors if isinstance(vector, Vector)] == [(5, 64), (2, 64)]
    assert (await failure_of(bus, Embedding(inputs=("hello",), is_pooled=True))).code == "invalid_request"
    assert (await card(bus)).pooling == "none"
    assert (await card(bus)).can_generate


async def test_a_worker_that_reranks_has_a_score_for_each_document_and_does_nothing_else(
    bus: Bus, settings: BusSettings, tmp_path: Path
) -> None:
    async with Worker(bus, settings, write_reranker_model(tmp_path / "reranker.gguf"), "w1"):
        scores = await part_of(bus, Rerank(query="who", documents=("me", "you", "me")))
        assert [score.index for score in scores if isinstance(score, Score)] == [0, 1, 2]
        assert scores[0].score == pytest.approx(scores[2].score, abs=1e-5)
        assert scores[0].score != pytest.approx(scores[1].score, abs=1e-3)
        for request in (Embedding(inputs=("me",)), Completion(prompts=("me",))):
            assert (await failure_of(bus, request)).code == "not_supported"
        assert ((await card(bus)).pooling, (await card(bus)).can_generate) == ("rank", False)


async def test_a_stream_and_embeddings_go_on_at_once_in_one_worker(bus: Bus, hire: Hire) -> None:
    """Neither waits for the other's end, nor is refused for its sake."""
    await hire(n_slots=2)
    text = Completion(prompts=("Once upon a time",), n_predict=2000, sampling=WILD)
    async with queued(bus, text) as stream:
        await stream.until(lambda: len(stream.tokens[0]) > 0)
        for _ in range(20):
            n_before = len(stream.tokens[0])
            [vector] = await part_of(bus, Embedding(inputs=("hello",)))
            assert np.linalg.norm(vector.values()) == pytest.approx(1.0, abs=1e-5)
            await stream.until(lambda n_before=n_before: len(stream.tokens[0]) > n_before)
        assert stream.finished is None


@asynccontextmanager
async def piled_up(bus: Bus, n_jobs: int, request: Request = MANY, **fields: Any) -> AsyncIterator[list[Listener]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(queued(bus, request, **fields)) for _ in range(n_jobs)]


def n_waiting(pile: list[Listener]) -> int:
    return sum(listener.finished is None for listener in pile)


@asynccontextmanager
async def heard(pile: list[Listener]) -> AsyncIterator[None]:
    """All of them, meanwhile."""
    listening = [asyncio.create_task(listener.to_the_end()) for listener in pile]
    try:
        yield
    finally:
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


@pytest.mark.parametrize("of_streams", Lane)
@pytest.mark.parametrize("lane", Lane)
async def test_while_streams_have_all_slots_inputs_are_embedded(
    bus: Bus, hire: Hire, of_streams: Lane, lane: Lane
) -> None:
    await hire(n_slots=2)
    async with piled_up(bus, 2, STREAM, lane=of_streams) as streams:
        for stream in streams:
            await stream.until(lambda stream=stream: len(stream.tokens[0]) > 0)
        async with queued(bus, Embedding(inputs=("a",)), lane) as asked:
            await asked.to_the_end()
        assert asked.finished and asked.finished.failure is None
        for stream in streams:
            assert (await bus.queue.cancel(stream.job.id)).finished is None, "it was still under way"


@pytest.mark.parametrize("lane", Lane)
@pytest.mark.parametrize("of_pile", Lane)
async def test_a_pile_of_inputs_keeps_no_text_from_its_slot(bus: Bus, hire: Hire, of_pile: Lane, lane: Lane) -> None:
    worker = await hire(n_slots=2)
    async with piled_up(bus, 10, lane=of_pile) as pile, heard(pile):
        async with asyncio.timeout(PATIENCE_S):
            while not len(worker.held):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.005)
        async with queued(bus, STREAM.model_copy(update={"n_predict": 4}), lane) as text:
            await text.until(lambda: len(text.tokens[0]) > 0)
        assert n_waiting(pile) >= 7


@pytest.mark.parametrize("lane", [Lane.INTERACTIVE, pytest.param(Lane.BULK, marks=pytest.mark.slow)])
async def test_a_pile_of_inputs_is_shared_by_all_workers(bus: Bus, hire: Hire, lane: Lane) -> None:
    workers = [await hire("w1", n_slots=8), await hire("w2", n_slots=8)]
    async with piled_up(bus, 8, lane=lane) as pile, heard(pile):
        async with asyncio.timeout(PATIENCE_S):
            while not all(listener.finished for listener in pile):
                assert max(len(worker.held) for worker in workers) <= 2
                await asyncio.sleep(0.005)
        by = Counter(listener.finished.worker for listener in pile if listener.finished)
    assert min(by["w1"], by["w2"]) >= 2, by


async def test_a_pile_of_bulk_inputs_keeps_no_person_waiting(bus: Bus, hire: Hire) -> None:
    await hire(n_slots=2)
    async with piled_up(bus, 6, lane=Lane.BULK) as pile, heard(pile):
        async with asyncio.timeout(PATIENCE_S):
            while n_waiting(pile) == len(pile):  # noqa: ASYNC110 - whichever is first
                await asyncio.sleep(0.005)
        n_before = n_waiting(pile)
        await part_of(bus, Embedding(inputs=("a",)))
        assert n_waiting(pile) >= n_before - 1 > 2


async def test_one_large_job_of_inputs_lets_others_in_between(bus: Bus, hire: Hire) -> None:
    worker = await hire(n_slots=2)
    large = Embedding(inputs=("some words to embed" * 10,) * 2000)
    async with piled_up(bus, 1, large) as pile, heard(pile):
        await part_of(bus, Embedding(inputs=("a",)))
        held = worker.held.get(pile[0].job.id)
        assert held and len(held.parts) < 1500
