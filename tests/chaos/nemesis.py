"""Deals out faults by a seed: a shuffled deck of all kinds, again and again, each beginning while others still last."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.chaos.fleet import Fleet, Place
from tests.chaos.history import Fault, History
from tests.chaos.proxy import Proxy
from tests.chaos.server import Server


class Nemesis:
    def __init__(self, server: Server, fleet: Fleet, clients_way: Proxy, history: History, seed: int) -> None:
        self._server = server
        self._fleet = fleet
        self._clients_way = clients_way
        self._history = history
        self._luck = random.Random(f"nemesis {seed}")
        self._has_server = asyncio.Lock()
        self._free_places: asyncio.Queue[Place] = asyncio.Queue()
        for place in fleet.places:
            self._free_places.put_nowait(place)
        self._on_a_worker = {
            "kill a worker": self._kill,
            "freeze a worker past its lease": self._freeze,
            "freeze a worker for a moment": self._freeze_shortly,
            "ask a worker to leave": self._ask_to_leave,
            "cut replies to a worker": self._cut_replies,
            "slow way to a worker": self._delay,
            "half-open way to a worker": self._stall,
            "words of a worker come late": self._come_late,
            "no way to a worker": self._part,
        }
        self._on_the_server = {
            "kill the server": self._kill_server,
            "restart the server": self._restart_server,
            "freeze the server": self._freeze_server,
        }
        self._on_all = {
            "kill all workers": self._kill_all,
            "cut replies to the clients": self._cut_clients,
            "no way for the clients": self._part_clients,
            "forget all scripts": self._forget_scripts,
        }

    @property
    def kinds(self) -> list[str]:
        return sorted((*self._on_a_worker, *self._on_the_server, *self._on_all))

    async def rage(self, kinds: Sequence[str], gap_s: float, duration_s: float) -> None:
        """A fault each `gap_s` or so, in whole decks, until the time is over; returns when the last one is."""
        async with asyncio.TaskGroup() as faults:
            while self._history.now_s() < duration_s:
                for name in self._luck.sample(kinds, len(kinds)):
                    faults.create_task(self._deal(name))
                    await asyncio.sleep(gap_s * self._luck.uniform(0.5, 1.5))

    async def _deal(self, name: str) -> None:
        """One fault, as soon as what it hits is not hit by another."""
        if on_worker := self._on_a_worker.get(name):
            place = await self._free_places.get()
            async with self._noted(name, f"worker {place.pid}"):
                await on_worker(place)
            self._free_places.put_nowait(place)
        elif on_server := self._on_the_server.get(name):
            async with self._has_server, self._noted(name, "server"):
                await on_server()
        else:
            async with self._noted(name, "all"):
                await self._on_all[name]()

    @asynccontextmanager
    async def _noted(self, name: str, target: str) -> AsyncIterator[None]:
        fault = Fault(name, target, self._history.now_s())
        self._history.faults.append(fault)
        yield
        fault.until_s = self._history.now_s()

    async def _pause(self, least_leases: float, most_leases: float) -> None:
        await asyncio.sleep(self._fleet.settings.lease_s * self._luck.uniform(least_leases, most_leases))

    async def _kill(self, place: Place) -> None:
        place.signal(signal.SIGKILL)

    async def _freeze(self, place: Place) -> None:
        self._fleet.harm(place)
        place.signal(signal.SIGSTOP)
        await self._pause(1.3, 2.5)
        place.signal(signal.SIGCONT)

    async def _freeze_shortly(self, place: Place) -> None:
        place.signal(signal.SIGSTOP)
        await self._pause(0.05, 0.4)
        place.signal(signal.SIGCONT)

    async def _ask_to_leave(self, place: Place) -> None:
        self._fleet.ask_to_leave(place)
        if self._luck.random() < 0.3:
            await self._pause(0.02, 0.2)
            self._fleet.ask_to_leave(place)  # whoever is there by now

    async def _cut_replies(self, place: Place) -> None:
        place.proxy.n_to_cut = self._luck.randrange(1, 6)
        await self._pause(0.2, 1)
        place.proxy.n_to_cut = 0

    async def _delay(self, place: Place) -> None:
        place.proxy.delay_s = self._luck.uniform(0.005, 0.06)
        await self._pause(0.5, 3)
        place.proxy.delay_s = 0.0

    async def _stall(self, place: Place) -> None:
        self._fleet.harm(place)
        place.proxy.stall()
        await self._pause(0.3, 3)
        place.proxy.cut_all()
        place.proxy.flow()

    async def _come_late(self, place: Place) -> None:
        """What it says stays on its way until its jobs are others', and then arrives."""
        self._fleet.harm(place)
        place.proxy.stall()
        await self._pause(1.4, 2.5)
        place.proxy.flow()

    async def _part(self, place: Place) -> None:
        self._fleet.harm(place)
        place.proxy.close()
        await self._pause(0.3, 3)
        place.proxy.open()

    async def _kill_all(self) -> None:
        for place in self._fleet.places:
            place.signal(signal.SIGKILL)

    async def _cut_clients(self) -> None:
        self._clients_way.n_to_cut = self._luck.randrange(1, 10)
        await self._pause(0.2, 1)
        self._clients_way.n_to_cut = 0

    async def _part_clients(self) -> None:
        self._clients_way.close()
        await self._pause(0.1, 1)
        self._clients_way.open()

    async def _kill_server(self) -> None:
        await self._server.end(signal.SIGKILL)
        await self._pause(0, 1.5)
        await self._server.start()

    async def _restart_server(self) -> None:
        await self._server.end(signal.SIGTERM)
        await self._server.start()

    async def _freeze_server(self) -> None:
        self._server.freeze()
        await self._pause(0.5, 2)
        self._server.thaw()

    async def _forget_scripts(self) -> None:
        await self._server.forget_scripts()
