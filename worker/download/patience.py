"""How long what fails in passing is tried again. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from worker.download.failures import DownloadFailed, Interrupted

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    attempts: int = 8
    """In a row without getting any further."""
    first_s: float = 0.5
    """Before the second attempt; then twice as long each time."""
    most_s: float = 30.0
    on_trouble: Callable[[str], None] = lambda _: None
    """Hears why something is tried again."""

    def briefly(self) -> Patience:
        """For what there is another way around."""
        return replace(self, attempts=min(self.attempts, 2))

    async def see_through(self, attempt: Callable[[], Awaitable[T]], progress: Callable[[], int] = lambda: 0) -> T:
        """What `attempt` gives once it is not Interrupted; DownloadFailed when it got nowhere too often."""
        failed, furthest = 0, progress()
        while True:
            try:
                return await attempt()
            except Interrupted as trouble:
                # Further than ever: who starts over each time, and gets now more, now less, gets nowhere.
                failed = 1 if progress() > furthest else failed + 1
                furthest = max(furthest, progress())
                if failed >= self.attempts:
                    raise DownloadFailed(f"{trouble}; gave up after {failed} attempts") from trouble
                wait_s = self._wait_s(failed, trouble)
                self.on_trouble(str(trouble))
                log.warning("will try again", reason=str(trouble), in_s=round(wait_s, 1))
                await asyncio.sleep(wait_s)

    def _wait_s(self, failed: int, trouble: Interrupted) -> float:
        """With jitter: a fleet that was cut off together does not come back together."""
        backoff: float = min(self.most_s, self.first_s * 2 ** (failed - 1)) * random.uniform(0.5, 1.0)
        return max(backoff, min(trouble.retry_after_s or 0.0, self.most_s))
