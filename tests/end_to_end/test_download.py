"""A worker whose model is fetched when it starts, as those see it who wait for it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack import Stack
from tests.worker.download.servers import REPO, Fault, HubServer

pytestmark = pytest.mark.usefixtures("no_proxy")


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture(scope="session")
def model_file(model: Path) -> bytes:
    return model.read_bytes()


@pytest.fixture
async def hub(model_file: bytes) -> AsyncIterator[HubServer]:
    async with HubServer.open() as opened:
        opened.put("tiny-Q8_0.gguf", model_file)
        yield opened


@pytest.fixture
def asked(hub: HubServer, tmp_path: Path) -> dict[str, Any]:
    return {"hf_repo": f"{REPO}:Q8_0", "hf_endpoint": hub.endpoint, "cache_dir": tmp_path / "cache", "threads": 1}


@pytest.mark.slow
async def test_a_download_shows_its_progress_ends_when_told_to_and_goes_on_at_the_next_start(
    stack: Stack, hub: HubServer, asked: dict[str, Any]
) -> None:
    size = len(hub.paths["tiny-Q8_0.gguf"])
    hub.files.faults = [Fault(stall_after=size // 2)]
    worker = stack.start("worker", **asked)

    async def is_half_done() -> bool:
        health = (await stack.http.get("/health")).json()
        return health["status"] == "loading model" and 0.3 < health["progress"] < 0.5

    await stack.until(is_half_done, worker)
    worker.signal(signal.SIGTERM)
    assert await worker.wait() == 0

    worker = stack.start("worker", **asked)

    async def is_ready() -> bool:
        return (await stack.http.get("/health")).status_code == 200

    await stack.until(is_ready, worker)
    first, second = hub.files.ranges
    assert (first, second) == (None, f"bytes={size // 2}-")
    models = (await stack.http.get("/v1/models")).json()
    assert [entry["id"] for entry in models["data"]] == [f"{REPO}:Q8_0"]


async def test_a_model_that_cannot_be_fetched_is_one_sentence_for_all_who_wait(
    stack: Stack, hub: HubServer, asked: dict[str, Any]
) -> None:
    hub.token, hub.is_gated = "hf_right", True
    worker = stack.start("worker", **asked, hf_token="hf_wrong")
    assert await worker.wait() == 3
    sentence = worker.log.splitlines()[-1].removeprefix("slotstream worker: ")
    assert (
        f"the repository {REPO} of 127.0.0.1 is gated, its owner must have let you in with the token that was given"
        in sentence
    )
    assert "hf_wrong" not in worker.log
    assert (await stack.http.get("/health")).json()["error"]["message"] == sentence
