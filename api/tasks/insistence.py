"""Waiting for work so that a cancel is heard. redis-py loses one that meets a connection being made, and then whoever
waits for the cancelled waits for ever. Knows nothing of the work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

CANCEL_EVERY_S = 3.0
"""Longer than any work takes to leave in good order, which a second cancel would cut off."""

Made = TypeVar("Made")


async def insistently(work: Awaitable[Made]) -> Made:
    """What comes of `work`; when this is cancelled, it is too, as often as it takes."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,))  # not `await task`: a cancel of ours would go to it, once
        return task.result()
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=CANCEL_EVERY_S)
