"""What arq has to be told of a job while it is under way, so that a job of a killed worker is soon somebody else's.

arq marks a job as taken once, for longer than the longest of all its functions may run, and each poll of each worker
asks again about every job that runs. Here a mark is short and renewed, and the job's place in the queue moves ahead of
the polls meanwhile. Two may still run at once, if one is held up for longer than its mark: that must do no harm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
from arq.connections import ArqRedis
from arq.constants import in_progress_key_prefix

MARK_S = 3
"""For `Trade.mark_s` of a worker whose functions are all marked."""
RENEW_EVERY_S = 0.8

log = structlog.get_logger(__name__)


@asynccontextmanager
async def marked(ctx: dict[str, Any]) -> AsyncIterator[None]:
    """Around what a function of an arq worker does; `ctx` is what arq gives it."""
    is_over = asyncio.Event()  # a cancel could be lost: redis-py swallows one that meets a connection being made
    renewing = asyncio.create_task(_renew(ctx, is_over))
    try:
        yield
    finally:
        is_over.set()
        await renewing
        # A job that was cut off is there for the next worker at once; of one that is done arq deletes all.
        with suppress(Exception):  # the server is away: then its time comes by itself
            await _move(ctx, 0.0)


async def _renew(ctx: dict[str, Any], is_over: asyncio.Event) -> None:
    redis: ArqRedis = ctx["redis"]
    while not is_over.is_set():
        try:
            await redis.psetex(in_progress_key_prefix + ctx["job_id"], MARK_S * 1000, b"1")
            await _move(ctx, MARK_S)
        except Exception as error:  # whatever it was, the next one may succeed
            log.info("mark not renewed", job=ctx["job_id"], reason=str(error) or type(error).__name__)
        with suppress(TimeoutError):
            async with asyncio.timeout(RENEW_EVERY_S):
                await is_over.wait()


async def _move(ctx: dict[str, Any], ahead_s: float) -> None:
    redis: ArqRedis = ctx["redis"]
    await redis.zadd(ctx["queue"], {ctx["job_id"]: int((time.time() + ahead_s) * 1000)}, xx=True)
