"""Stacks that all tests share which only ask, around one embedded server: started once, and looked at when they end.

A plugin, so that every folder of tests has them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import redis

from shared.bus import EmbeddedServer
from tests.models import (
    tiny_model,
    write_adapter,
    write_encoder_model,
    write_infill_model,
    write_projector,
    write_reranker_model,
)
from tests.ports import free_port
from tests.stack import PATIENCE_S, Role, Stack, ask

ALLOWED = "hooks.example.com,127.0.0.1"
"""Hosts that may be told of endings, as examples name them and as receivers of tests have them."""


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedServer() as server:
        yield server.start(tmp_path_factory.mktemp("valkey"))


@pytest.fixture(scope="session")
def model() -> Path:
    """A tiny random model: its words mean nothing, and it is quick."""
    return tiny_model()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_stack(redis_url: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """One worker of four slots with 256 tokens each, a folder for what they have, and two adapters that nobody has
    unless he asks for them. At the end nothing may be held by anybody."""
    folder = tmp_path_factory.mktemp("shared")
    adapters = [write_adapter(folder / f"adapter{seed}.gguf", n_layers=1, seed=seed) for seed in (1, 2)]
    stack = Stack(redis_url, folder)
    try:
        await stack.start_api(allow_hosts=ALLOWED)
        await stack.start_worker(
            model,
            ctx_size=1024,
            parallel=4,
            lora=",".join(map(str, adapters)),
            lora_init_without_apply=True,
            slot_save_path=folder,
        )
        yield stack
        await stack.until(stack.is_idle)
        assert _pending(stack) == {}
    finally:
        await stack.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def specialists(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Three workers with a model each: `tiny` sees images and fills gaps, `judge` reranks, `rows` has a vector for each
    token."""
    folder = tmp_path_factory.mktemp("specialists")
    stack = Stack(redis_url, folder)
    try:
        await stack.start_api()
        projector = write_projector(folder / "projector.gguf")
        filler = write_infill_model(folder / "tiny.gguf", n_layers=2, seed=1)
        stack.start("worker", model=filler, alias="tiny", mmproj=projector, ctx_size=1024, parallel=4, threads=1)
        judge, rows = write_reranker_model(folder / "judge.gguf"), write_encoder_model(folder / "rows.gguf")
        stack.start("worker", model=judge, alias="judge", rerank=True, threads=1)
        stack.start("worker", model=rows, alias="rows", embedding=True, pooling="none", threads=1)

        async def are_ready() -> bool:
            return len((await stack.http.get("/v1/models")).json().get("data", ())) == 3

        await stack.until(are_ready)
        yield stack
        await stack.until(stack.is_idle)
        assert [role.process.poll() for role in stack.roles] == [None] * 4, "a process ended"
    finally:
        await stack.close()


@pytest.fixture(scope="session")
def shared_tasks(shared_stack: Stack) -> Role:
    """A tasks process beside them."""
    return shared_stack.start("api.tasks", log_level="info", allow_hosts=ALLOWED)


@pytest_asyncio.fixture(loop_scope="session")
async def served(shared_stack: Stack) -> AsyncIterator[Stack]:
    """The shared stack. Whatever a test asked of it, the same worker answers a plain request afterwards."""
    yield shared_stack
    plain = await shared_stack.http.post("/completion", json=ask())
    assert (plain.status_code, plain.json()["tokens_predicted"]) == (200, 12), plain.text
    assert not [role for role in shared_stack.roles if role.process.poll() is not None], "a process ended"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def old_api(shared_stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    """A second API to the shared worker, which speaks with clients of 2024."""
    port = free_port()
    role = shared_stack.start("api", port=port, compat="2024")
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:

        async def is_ready() -> bool:
            try:
                return (await client.get("/health")).status_code == 200
            except httpx.TransportError:
                return False

        await shared_stack.until(is_ready, role)
        yield client


def _pending(stack: Stack) -> dict[str, int]:
    """Entries of each queue that were handed out and never ended."""
    namespace = stack.environment["SLOTSTREAM_NAMESPACE"]
    with redis.Redis.from_url(stack.environment["SLOTSTREAM_REDIS_URL"], decode_responses=True) as client:
        queues = [key for key in client.scan_iter(match=f"{namespace}:*", _type="stream") if ":q:" in key]
        pending = {queue: client.xpending(queue, "workers")["pending"] for queue in queues}
    return {queue: count for queue, count in pending.items() if count}
