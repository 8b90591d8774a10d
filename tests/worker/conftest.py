"""A bus, and workers for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from shared.bus import Bus, open_bus
from shared.settings import BusSettings
from tests.models import write_byte_model
from tests.worker.crew import Worker


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("models") / "bytes.gguf", n_ctx_train=8192)


@pytest.fixture
async def bus(settings: BusSettings) -> AsyncIterator[Bus]:
    async with open_bus(settings, name="test") as opened:
        yield opened


@pytest.fixture
def settings(embedded_settings: BusSettings) -> BusSettings:
    return embedded_settings.model_copy(update={"lease_s": 0.5})


@pytest.fixture
async def hire(bus: Bus, settings: BusSettings, model: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts workers that end with the test."""
    async with AsyncExitStack() as stack:

        async def start(name: str = "w1", **engine: Any) -> Worker:
            return await stack.enter_async_context(Worker(bus, settings, model, name, **engine))

        yield start
