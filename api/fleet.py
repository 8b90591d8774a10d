"""The workers as the API last saw them: which models are served, which slots are free, whether Redis is there.

Looked at once a second by one task, so that health checks and names of models cost no round trip. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import structlog

from shared.bus import Bus, ModelCard, SlotState, WorkerState
from shared.errors import BusUnavailable, NotReady, UnknownModel
from shared.settings import ConfigError

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 1.0
LOOK_TIMEOUT_S = 2.0
STALE_AFTER_S = 5.0
"""Without a successful look for so long, Redis counts as away."""
INSPECT_EVERY_S = 30.0
"""After a failover another server may answer to the same name, and throw jobs away."""
AWAY = "Redis cannot be reached"
THERE = ("loading", "ready")
"""How a worker stands that takes jobs, or will."""

LATEST = ":latest"

State = Literal["ok", "loading model", "load failed", "no worker", "redis unavailable"]


class Staffing(NamedTuple):
    """Who is there for a model."""

    is_there: bool
    """Whether a worker serves it, or loads it."""
    failure: str = ""
    """Why the last one that tried could not load it, where none is there."""


class Slot(NamedTuple):
    worker_id: str
    id: int
    """Among those of its worker."""
    number: int
    """Among those of all workers of its model that are ready."""


class Fleet:
    """Written by `watch` and `look` alone, in the event loop's thread."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._looking = asyncio.Lock()
        self._seen_at = 0.0
        self._is_away = True
        self._refusal: str | None = None
        """Why the server took no job at the last look, though it could be read."""
        self._unfit: str | None = None
        """Why no job should be left with it, by the last inspection."""
        self._inspect_at = 0.0
        self.workers: list[WorkerState] = []
        self.models: dict[str, ModelCard] = {}
        """Every model that was served lately, alive or not."""

    async def watch(self) -> None:
        """Looks for ever; trouble is told of once, and looked through again and again."""
        told: str | None = AWAY
        while True:
            if not await self.look():
                self._is_away = True
            await self._inspect()
            if self.trouble != told:
                told = self.trouble
                if told:
                    log.warning("no jobs are taken", reason=told)
                else:
                    log.info("jobs are taken", workers=sum(worker.status in THERE for worker in self.workers))
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self, timeout_s: float = LOOK_TIMEOUT_S) -> bool:
        """One look now, for those whom a second-old picture would turn away. False when Redis did not answer."""
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s), self._looking:
                if self._seen_at < asked_at:  # else somebody looked while we waited
                    self.workers, self.models, self._refusal = await asyncio.gather(
                        self._bus.presence.workers(), self._bus.presence.models(), self._ask_for_refusal()
                    )
                    self._seen_at = time.monotonic()
                    self._is_away = False
        except TimeoutError:
            return False
        except BusUnavailable:
            self._is_away = True
            return False
        return True

    async def _ask_for_refusal(self) -> str | None:
        try:
            await self._bus.queue.check_accepts()
        except BusUnavailable as error:
            return error.message
        return None

    async def _inspect(self) -> None:
        """Now and then, and at once when the server has come back: it may be another one."""
        if self._is_away:
            self._inspect_at = 0.0
        elif time.monotonic() >= self._inspect_at:
            try:
                await self._bus.check_server()
            except BusUnavailable:
                return
            except ConfigError as error:
                self._unfit = str(error)
            else:
                self._unfit = None
            self._inspect_at = time.monotonic() + (LOOK_EVERY_S if self._unfit else INSPECT_EVERY_S)

    @property
    def is_bus_away(self) -> bool:
        return self._is_away or time.monotonic() - self._seen_at > STALE_AFTER_S

    @property
    def trouble(self) -> str | None:
        """Why no job is taken now: Redis is away, is full, only reads, cannot save, or evicts. None: jobs are taken."""
        return AWAY if self.is_bus_away else self._refusal or self._unfit

    @property
    def state(self) -> State:
        """Whether a request would be worked on now, and what is missing."""
        if self.trouble:
            return "redis unavailable"
        if any(worker.status == "ready" for worker in self.workers):
            return "ok"
        if any(worker.status == "loading" for worker in self.workers):
            return "loading model"
        return "load failed" if self.failure else "no worker"

    @property
    def progress(self) -> float:
        """Of the load that is furthest, 0 to 1."""
        return max((worker.progress for worker in self.workers if worker.status == "loading"), default=0.0)

    @property
    def loading(self) -> str:
        """What is said of the load that is furthest: llama.cpp's words, and what it is at where they would mislead."""
        stage = max((_stage(worker) for worker in self.workers if worker.status == "loading"), default=(0.0, ""))[1]
        return f"Loading model: {stage}" if stage else "Loading model"

    @property
    def failure(self) -> str:
        """Why the last worker that failed to start did, if one has lately."""
        return _failure(self.workers)

    def slots(self) -> list[tuple[WorkerState, SlotState]]:
        """Every slot of every worker, in the order in which `/slots` numbers them."""
        return [(worker, slot) for worker in self.workers for slot in worker.slots]

    def serving(self) -> dict[str, ModelCard]:
        """The models that live workers have loaded; without any, those that they load; without any, those served
        lately, whose jobs wait. What never could be loaded counts only where there is nothing else."""
        loaded = {worker.model.name: worker.model for worker in self.workers if worker.status in ("ready", "draining")}
        coming = {
            worker.model.name: self.models.get(worker.model.name, worker.model)
            for worker in self.workers
            if worker.status == "loading"
        }
        known = {name: card for name, card in self.models.items() if card.n_vocab}
        return loaded or coming or known or self.models

    async def resolve(self, asked: str | None) -> str:
        """The model that a request is for.

        Raises NotReady when there has been none, UnknownModel when none fits, BusUnavailable at once instead of
        letting a request find out slowly.
        """
        if self.trouble:
            await self.look()
        if self.trouble:
            raise BusUnavailable(self.trouble)
        if self._match(asked) is None:
            await self.look()
        found = self._match(asked)
        if found is not None:
            return found
        serving = self.serving()
        if not serving:
            is_loading = any(worker.status == "loading" for worker in self.workers)
            why = self.loading if is_loading else self.failure or "No worker has served a model yet"
            raise NotReady(why)
        named = f"Model {asked!r} is not served" if asked else "Several models are served"
        raise UnknownModel(f"{named}; there are {', '.join(sorted(serving))}", param="model", model=asked or "")

    async def resolve_staffed(self, asked: str | None) -> str:
        """The same for a request that somebody waits for: NotReady also when no worker is there to take it."""
        found = await self.resolve(asked)
        if not self.staffing(found).is_there:
            await self.look()
        staffing = self.staffing(found)
        if not staffing.is_there:
            raise NotReady(staffing.failure or f"No worker serves {found!r} now", retry_after_s=5)
        return found

    def staffing(self, model: str) -> Staffing:
        if self.staff(model):
            return Staffing(is_there=True)
        return Staffing(is_there=False, failure=_failure(self._of(model)))

    def staff(self, model: str) -> list[WorkerState]:
        """The workers that serve a model, or load it, sorted by id."""
        return [worker for worker in self._of(model) if worker.status in THERE]

    def _of(self, model: str) -> list[WorkerState]:
        return [worker for worker in self.workers if worker.model.name == model]

    def waiting_for(self, model: str) -> str | None:
        """What a job for this model waits for besides its turn; None when a worker serves it."""
        members = self._of(model)
        if any(worker.status == "ready" for worker in members):
            return None
        loading = [_stage(worker) for worker in members if worker.status == "loading"]
        if loading:
            progress, stage = max(loading)
            return f"the model, which is loaded to {progress:.0%}{f': {stage}' if stage else ''}"
        failure = _failure(members)
        return f"a worker; the last one could not start: {failure}" if failure else "a worker"

    def slot(self, model: str, number: int) -> Slot | None:
        """The slot of that number, counted over the workers of a model that are ready, in the order of `/slots`, and
        from the first one again behind the last, as llama.cpp counts. None while nobody is ready."""
        ready = (worker for worker in self._of(model) if worker.status == "ready")
        slots = [(worker.id, slot.id) for worker in ready for slot in worker.slots]
        return Slot(*slots[number % len(slots)], number % len(slots)) if slots else None

    def can(self, model: str, ability: Callable[[ModelCard], bool]) -> bool:
        """Whether a worker of a model has an ability, or none is there to say otherwise."""
        cards = [worker.model for worker in self.loaded(model)]
        return not cards or any(map(ability, cards))

    def can_see(self, model: str) -> bool:
        """Whether a model may be shown images."""
        return self.can(model, lambda card: card.has_vision)

    def loaded(self, model: str) -> list[WorkerState]:
        """The workers of a model that are past loading it, sorted by id."""
        return [w for w in self.workers if w.model.name == model and w.status in ("ready", "draining")]

    def served(self, asked: str) -> ModelCard | None:
        """The card of a model that is served, by any of its names."""
        serving = self.serving()
        name = _named(serving, asked)
        return None if name is None else serving[name]

    def _match(self, asked: str | None) -> str | None:
        """A name means who says so that is there, else the model that we know by it, also while its workers are away:
        another would answer wrongly. Any other name means the only one that is served."""
        serving = self.serving()
        found = _named(serving, asked) or _named(self.models, asked)
        return found or (next(iter(serving)) if len(serving) == 1 else None)


def _named(cards: Mapping[str, ModelCard], asked: str | None) -> str | None:
    """Which of these models is meant, by its name or another one of it."""
    for spelled in _spellings(asked):
        if spelled in cards:
            return spelled
        if meant := next((name for name, card in cards.items() if spelled in card.aliases), None):
            return meant
    return None


def _spellings(name: str | None) -> tuple[str, ...]:
    """A name as it is asked for, and as clients of ollama write it, or need not: without a tag the latest is meant."""
    if not name:
        return ()
    return name, name.removesuffix(LATEST) if name.endswith(LATEST) else name + LATEST


def _stage(worker: WorkerState) -> tuple[float, str]:
    return worker.progress, worker.stage


def _failure(workers: Iterable[WorkerState]) -> str:
    """Of models that nobody serves or loads: what was mended since is no news any more."""
    workers = list(workers)
    staffed = {worker.model.name for worker in workers if worker.status in THERE}
    failed = [worker for worker in workers if worker.status == "failed" and worker.model.name not in staffed]
    return max(failed, key=lambda worker: worker.started_at).failure if failed else ""
