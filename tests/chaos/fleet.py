"""Worker processes, each in a place with a way of its own to the server. Whoever dies is followed by another.

They are forked from a process that has imported everything, so that a worker is there at once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Self

from pydantic import SecretStr

from shared.settings import WorkerSettings
from tests.chaos.history import Attempt, Exit, History
from tests.chaos.proxy import Proxy
from tests.chaos.worker import attempts, work

LOOK_EVERY_S = 0.05
LEASE_LOST = '"a lease was lost"'
NOT_GIVEN_BACK = '"not given back'
LEAVE_TIMEOUT_S = 20.0

nursery = multiprocessing.get_context("forkserver")
nursery.set_forkserver_preload(["tests.chaos.worker"])


@dataclass
class Place:
    """Where one worker after another works."""

    number: int
    proxy: Proxy
    worker: ForkServerProcess | None = None
    journal: Path = Path()
    is_asked_to_leave: bool = False

    @property
    def pid(self) -> int | None:
        return self.worker.pid if self.worker else None

    def signal(self, number: signal.Signals) -> None:
        if self.worker and self.worker.is_alive():
            os.kill(self.worker.pid or 0, number)


@dataclass
class Fleet:
    """Open with `async with`; closing it kills everybody who is left."""

    server_port: int
    settings: WorkerSettings
    """Of all; each has a URL of its own."""
    n_places: int
    folder: Path
    scripts: Path | None
    """A folder with others than our own."""
    history: History
    places: list[Place] = field(default_factory=list)
    _is_closing: bool = False
    _left: asyncio.Event = field(default_factory=asyncio.Event)
    """Nobody is there any more."""

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        for number in range(self.n_places):
            proxy = await self._stack.enter_async_context(Proxy(self.server_port))
            self.places.append(Place(number, proxy))
        self._tending = asyncio.create_task(self._tend())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._tending.cancel()
        for place in self.places:
            if place.worker:
                place.worker.kill()
                place.worker.join()
        await self._stack.aclose()

    async def leave(self) -> None:
        """Ask everybody to leave, and wait until they have."""
        self._is_closing = True
        for place in self.places:
            self.ask_to_leave(place)
        try:
            await asyncio.wait_for(self._left.wait(), LEAVE_TIMEOUT_S)
        except TimeoutError:
            self.history.complaints.append(f"a worker has not left {LEAVE_TIMEOUT_S:.0f} s after it was asked to")

    def ask_to_leave(self, place: Place) -> None:
        place.is_asked_to_leave = True
        place.signal(signal.SIGTERM)

    def harm(self, place: Place) -> None:
        """What this worker holds may well go to others."""
        if place.pid:
            self.history.harmed.add(place.pid)

    @property
    def n_leases_lost(self) -> int:
        """How often a worker was told that a job is no longer its own."""
        return sum(log.read_text().count(LEASE_LOST) for log in self.folder.glob("worker-*.log"))

    async def _tend(self) -> None:
        while True:
            for place in self.places:
                if place.worker and place.worker.exitcode is not None:
                    self._bury(place, place.worker)
                if place.worker is None and not self._is_closing:
                    self._start(place)
            if not any(place.worker for place in self.places):
                self._left.set()
            await asyncio.sleep(LOOK_EVERY_S)

    def _start(self, place: Place) -> None:
        settings = self.settings.model_copy(update={"redis_url": SecretStr(place.proxy.url)})
        number = sum(1 for _ in self.folder.glob("worker-*.log"))
        log = self.folder / f"worker-{number}.log"
        log.touch()
        place.is_asked_to_leave = False
        place.journal = log.with_suffix(".journal")
        place.worker = nursery.Process(target=work, args=(settings, place.journal, log, self.scripts))
        place.worker.start()

    def _bury(self, place: Place, worker: ForkServerProcess) -> None:
        assert worker.pid is not None and worker.exitcode is not None
        self.history.attempts += [Attempt(worker.pid, *each) for each in attempts(place.journal)]
        self.history.exits.append(Exit(worker.pid, worker.exitcode, place.is_asked_to_leave))
        if worker.exitcode == -signal.SIGKILL or (place.is_asked_to_leave and _has_left_unheard(place)):
            self.history.harmed.add(worker.pid)
        place.worker = None


def _has_left_unheard(place: Place) -> bool:
    """Whether it may have left while the server was away: it could not give its jobs back, and to the server it fell
    silent with them."""
    log = place.journal.with_suffix(".log").read_text()
    return LEASE_LOST in log or NOT_GIVEN_BACK in log
