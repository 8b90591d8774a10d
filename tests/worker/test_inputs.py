"""Embeddings and reranking of whole workers: jobs, answers, and what a worker says that it can do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.bus import Bus, ModelCard
from shared.events import Failure, Score, Vector
from shared.jobs import Completion, Embedding, Request, Rerank
from shared.settings import BusSettings
from tests.models import write_reranker_model
from tests.worker.crew import PATIENCE_S, WILD, Worker, heard_of, queued

Hire = Callable[..., Any]


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
