"""What is seen of a worker between its start and its first job, by all who wait for it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.stack import Stack, ask, follow, make_job

SLOW_LOAD = """
import sys, time
from worker.engine.llama.loading import LoadWatch
from worker.__main__ import main
heed = LoadWatch.heed
def slowly(watch, progress):
    time.sleep(0.3)
    return heed(watch, progress)
LoadWatch.heed = slowly
sys.exit(main())
"""


@pytest.mark.slow
async def test_a_model_that_cannot_be_loaded_is_told_to_all_who_wait_and_a_job_runs_once_it_is_mended(
    stack: Stack, model: Path, tmp_path: Path
) -> None:
    gone = tmp_path / "gone.gguf"
    worker = stack.start("worker", model=gone, alias="tiny")
    assert await worker.wait() == 3
    sentence = f"cannot read the model {gone}: no such file or directory"
    assert worker.log.splitlines()[-1] == f"slotstream worker: {sentence}"

    health = await stack.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "load failed")
    assert health.json()["error"]["message"] == sentence
    asked = await stack.http.post("/completion", json=ask())
    assert (asked.status_code, asked.json()["error"]["message"]) == (503, sentence)
    job = await make_job(stack, ask(n_predict=2))
    waiting = (await stack.http.get(f"/v1/jobs/{job}")).json()
    assert (waiting["status"], waiting["waiting_for"]) == (
        "queued",
        f"a worker; the last one could not start: {sentence}",
    )

    await stack.start_worker(model)
    _, ended = await follow(stack, job)
    assert (ended["status"], ended["waiting_for"]) == ("succeeded", None)
    assert (await stack.http.get("/health")).status_code == 200


async def test_a_model_that_llama_cpp_would_end_the_process_for_is_one_sentence_too(stack: Stack, model: Path) -> None:
    worker = stack.start("worker", model=model, alias="tiny", override_kv="llama.block_count=int:0")
    assert await worker.wait() == 3
    sentence = worker.log.splitlines()[-1]
    assert sentence.startswith("slotstream worker: llama.cpp gives the model up: GGML_ASSERT(")
    health = (await stack.http.get("/health")).json()
    assert f"slotstream worker: {health['error']['message']}" == sentence


@pytest.mark.slow
async def test_a_load_shows_its_progress_and_ends_at_once_when_the_worker_is_told_to_leave(
    stack: Stack, model: Path
) -> None:
    worker = stack.start("worker", program=SLOW_LOAD, model=model, threads=1)
    seen: list[float] = []

    async def is_under_way() -> bool:
        health = (await stack.http.get("/health")).json()
        if health["status"] == "loading model":
            assert health["error"]["message"] == "Loading model"
            seen.append(health["progress"])
        return len(set(seen)) > 2

    await stack.until(is_under_way, worker)
    assert seen == sorted(seen) and 0 < seen[-1] < 1
    worker.signal(signal.SIGTERM)
    assert await worker.wait() == 0
    assert '"left"' in worker.log or "left" in worker.log.splitlines()[-1]

    async def is_gone() -> bool:
        return bool((await stack.http.get("/health")).json()["status"] == "no worker")

    await stack.until(is_gone)
