"""A stack for each test, around one embedded server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.bus import EmbeddedServer
from tests.models import tiny_model
from tests.stack import Stack


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedServer() as server:
        yield server.start(tmp_path_factory.mktemp("valkey"))


@pytest.fixture
async def bare_stack(redis_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    """A namespace in which nothing runs yet."""
    stack = Stack(redis_url, tmp_path)
    try:
        yield stack
    finally:
        await stack.close()


@pytest.fixture
async def stack(bare_stack: Stack) -> Stack:
    """An API, and no worker yet."""
    await bare_stack.start_api()
    return bare_stack


@pytest.fixture(scope="session")
def model() -> Path:
    """A tiny random model: its words mean nothing, and it is quick."""
    return tiny_model()
