"""A store of each kind, with nothing in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio

from shared.store import Store
from shared.store.folder import Folder
from shared.store.remote import Remote
from tests.s3 import BUCKET, url_at


@pytest.fixture(scope="session")
def shared_remote(s3_endpoint: str) -> Remote:
    """One for all tests: to get to know S3 takes its package half a second."""
    return Remote(url_at(s3_endpoint, f"{BUCKET}/store"))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest_asyncio.fixture(params=["folder", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, threads: ThreadPoolExecutor) -> AsyncIterator[Store]:
    if request.param == "folder":
        yield Store(Folder(tmp_path / "store"), threads)
        return
    shared = Store(request.getfixturevalue("shared_remote"), threads)
    yield shared
    await shared.delete([name async for name, _ in shared.names()])
