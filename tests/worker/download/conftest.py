"""Servers for a test, an empty cache, and terms under which failing is quick."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.worker.download.servers import Files, HubServer
from worker.download.cache import Cache
from worker.download.patience import Patience
from worker.download.source import Terms

SOON = Patience(attempts=4, first_s=0.001)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture
async def files() -> AsyncIterator[Files]:
    async with Files.open() as opened:
        yield opened


@pytest.fixture
async def hub() -> AsyncIterator[HubServer]:
    async with HubServer.open() as opened:
        yield opened


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def terms(cache: Cache) -> Terms:
    return Terms(cache, patience=SOON)
