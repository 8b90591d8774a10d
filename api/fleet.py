"""The workers as the API last saw them: which models are served, which slots are free, whether Redis is there.

Looked at once a second by one task, so that health checks and names of models cost no round trip. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import structlog

from shared.bus import Bus, ModelCard, SlotState, WorkerState
from shared.errors import BusUnavailable, NotReady, UnknownModel

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 1.0
LOOK_TIMEOUT_S = 2.0
STALE_AFTER_S = 5.0
"""Without a successful look for so long, Redis counts as away."""

State = Literal["ok", "loading model", "no worker", "redis unavailable"]


class Fleet:
    """Written by `watch` and `look` alone, in the event loop's thread."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._looking = asyncio.Lock()
        self._seen_at = 0.0
        self._is_away = True
        self.workers: list[WorkerState] = []
        self.models: dict[str, ModelCard] = {}
        """Every model that was ever served, alive or not."""

    async def watch(self) -> None:
        """Looks for ever; an unreachable Redis is told of once and looked for again."""
        while True:
            was_away = self._is_away
            if not await self.look():
                self._is_away = True
            if self._is_away and not was_away:
                log.warning("the queue's server cannot be reached")
            elif was_away and not self._is_away:
                log.info("the queue's server is reached", workers=len(self.workers))
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self, timeout_s: float = LOOK_TIMEOUT_S) -> bool:
        """One look now, for those whom a second-old picture would turn away. False when Redis did not answer."""
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s), self._looking:
                if self._seen_at < asked_at:  # else somebody looked while we waited
                    self.workers = await self._bus.presence.workers()
                    self.models = await self._bus.presence.models()
                    self._seen_at = time.monotonic()
                    self._is_away = False
        except TimeoutError:
            return False
        except BusUnavailable:
            self._is_away = True
            return False
        return True

    @property
    def is_bus_away(self) -> bool:
        return self._is_away or time.monotonic() - self._seen_at > STALE_AFTER_S

    @property
    def state(self) -> State:
        """Whether a request would be worked on now, and what is missing."""
        if self.is_bus_away:
            return "redis unavailable"
        if any(worker.status == "ready" for worker in self.workers):
            return "ok"
        if any(worker.status == "loading" for worker in self.workers):
            return "loading model"
        return "no worker"

    def slots(self) -> list[tuple[WorkerState, SlotState]]:
        """Every slot of every worker, in the order in which `/slots` numbers them."""
        return [(worker, slot) for worker in self.workers for slot in worker.slots]

    def serving(self) -> dict[str, ModelCard]:
        """The models that live workers have loaded; without any, those ever served, whose jobs wait."""
        loaded = {worker.model.name: worker.model for worker in self.workers if worker.status != "loading"}
        return loaded or self.models

    async def resolve(self, asked: str | None) -> str:
        """The model that a request is for.

        Raises NotReady when there was never one, UnknownModel when none fits, BusUnavailable at once instead of
        letting a request find out slowly.
        """
        if self.is_bus_away and not await self.look():
            raise BusUnavailable("Redis cannot be reached")
        if self._match(asked) is None:
            await self.look()
        found = self._match(asked)
        if found is not None:
            return found
        serving = self.serving()
        if not serving:
            is_loading = any(worker.status == "loading" for worker in self.workers)
            raise NotReady("Loading model" if is_loading else "No worker has served a model yet")
        named = f"Model {asked!r} is not served" if asked else "Several models are served"
        raise UnknownModel(f"{named}; there are {', '.join(sorted(serving))}", param="model")

    async def resolve_staffed(self, asked: str | None) -> str:
        """The same for a request that somebody waits for: NotReady also when no worker is there to take it."""
        found = await self.resolve(asked)
        if not self._is_staffed(found):
            await self.look()
        if not self._is_staffed(found):
            raise NotReady(f"No worker serves {found!r} now", retry_after_s=5)
        return found

    def _is_staffed(self, model: str) -> bool:
        return any(worker.model.name == model and worker.status != "draining" for worker in self.workers)

    def _match(self, asked: str | None) -> str | None:
        serving = self.serving()
        if len(serving) == 1:
            return next(iter(serving))
        return asked if asked in serving or asked in self.models else None
