"""A stack for each test, in a namespace of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.stack import Stack


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
