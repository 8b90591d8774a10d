"""One process of this machine at a time, by a lock on a file that the system takes back when the process dies."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

LOOK_EVERY_S = 0.25


@asynccontextmanager
async def locked(path: Path, while_waiting: Callable[[], None]) -> AsyncIterator[None]:
    """Hold the lock for the body. `while_waiting` is called now and then until it is ours. OSError.

    The file stays: whoever removed it would leave others with a lock on a name that is gone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        while not _take(file.fileno()):
            while_waiting()
            await asyncio.sleep(LOOK_EVERY_S)
        yield


def _take(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
