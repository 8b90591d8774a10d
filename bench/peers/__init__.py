"""Queues that are measured beside each other, each in a process of its own: `python -m bench.peers.NAME URL JOBS`.

In its turn a queue takes no-op jobs and works them off in the same process, both at once, with the settings that suit
it best and without keeping results where that can be chosen. One JSON line tells how long it took. A peer's clock stops
when its last handler has run, ours when the last job has been ended: what that makes is in the peers' favour.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any


class Turn:
    """The jobs of one turn, on their way in and counted as they end."""

    def __init__(self, url: str, n_jobs: int) -> None:
        self.url = url
        self.n_jobs = n_jobs
        self._n_left = n_jobs
        self._is_over = asyncio.Event()
        self._began = (0.0, 0.0)

    async def produce(self, enqueue: Callable[[], Awaitable[Any]], *, tasks: int) -> None:
        """Starts the clock and enqueues all jobs; each of the tasks waits for its replies."""
        self._began = (time.perf_counter(), time.process_time())
        numbers = iter(range(self.n_jobs))

        async def one_after_another() -> None:
            for _ in numbers:
                await enqueue()

        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(one_after_another())

    def count(self) -> None:
        """One more has ended."""
        self._n_left -= 1
        if not self._n_left:
            self._is_over.set()

    async def end(self) -> None:
        """Waits for the last job, tells, and leaves at once: what a worker leaves running is nobody's."""
        await self._is_over.wait()
        tell(self._began)


def tell(began: tuple[float, float]) -> None:
    """Prints what has been spent since `began`: seconds, and CPU seconds of this process."""
    print(json.dumps({"wall_s": time.perf_counter() - began[0], "cpu_s": time.process_time() - began[1]}), flush=True)
    os._exit(0)


def take(run: Callable[[Turn], Awaitable[None]]) -> None:
    """One turn of a queue that lives in an event loop."""
    import uvloop  # noqa: PLC0415 - a queue of threads does without it

    url, n_jobs = sys.argv[1], int(sys.argv[2])

    async def turn() -> None:
        await run(Turn(url, n_jobs))

    uvloop.run(turn())
