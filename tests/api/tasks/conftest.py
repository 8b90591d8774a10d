from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from shared.bus import Bus, EmbeddedServer, open_bus
from shared.settings import TasksSettings


class RestartableServer:
    """A real server whose data outlives it."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self._server, self._folder = server, folder
        self.url = server.start(folder)

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        assert self._server.start(self._folder) == self.url


@pytest.fixture
def server() -> Iterator[RestartableServer]:
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer() as embedded:
        yield RestartableServer(embedded, Path(folder))


@pytest.fixture
def settings(server: RestartableServer, tmp_path: Path) -> TasksSettings:
    return TasksSettings(redis_url=server.url, store_url=SecretStr(str(tmp_path / "store")))


@pytest.fixture
async def bus(settings: TasksSettings) -> AsyncIterator[Bus]:
    async with open_bus(settings, name="test") as bus:
        yield bus
