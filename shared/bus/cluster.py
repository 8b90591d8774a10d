"""A Cluster as if it were one server: commands and subscriptions go to the node that owns the slot of their key.

Knows nothing of jobs, but counts on theirs lying in one slot each. What is known of who owns what may be old: then a
node says MOVED before anything ran, and the command goes there. A slot that is being moved key by key refuses until it
has arrived: a script that finds only half of a partition would take the other half for lost.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import NamedTuple

import structlog
from redis.asyncio.connection import AbstractConnection
from redis.crc import key_slot
from redis.exceptions import ResponseError

from shared.bus.address import Address, Host
from shared.bus.connect import CONNECT_TIMEOUT_S, Command, Link, Reply, connection_factory, unavailable
from shared.bus.script import ask
from shared.bus.subscriber import Inbox, Subscriber
from shared.errors import BusUnavailable
from shared.settings import ConfigError

LOOK_EVERY_S, LOOK_PAUSE_S = 5.0, 0.1
"""At who owns what. A moved channel must be found sooner than its job is taken for one that nobody follows."""

MOVES = 3
"""Redirections that a command follows at most."""

_WITHOUT_KEY = ("MULTI", "EXEC", "TIME", "SCRIPT", "PING")

log = structlog.get_logger(__name__)


class _Unit(NamedTuple):
    """Commands that run on one node, one after the other: one, or a transaction."""

    slot: int
    places: range
    """Of the commands, among those that are sent together."""


class ClusterLink:
    """A `Link` to each node that owns a slot. Open with `async with`; who opens closes."""

    def __init__(self, server: Address, name: str) -> None:
        """Raises ConfigError as `connection_factory`."""
        self.on_change: Callable[[], Awaitable[None]] = _do_nothing
        """Called whenever slots have other owners than before."""
        self._server, self._name = server, name
        self._makers: dict[Host, Callable[[], AbstractConnection]] = {
            host: connection_factory(server.at(host), name) for host in server.hosts
        }
        self._links: dict[Host, Link] = {}
        self._owners: dict[int, Host] = {}
        self._is_known = asyncio.Event()
        self._look = asyncio.Event()
        self._fault: BusUnavailable | None = None
        """Why a node did not say."""
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ClusterLink:
        self._watch = asyncio.create_task(self._keep_looking())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        for link in self._links.values():
            await link.__aexit__()

    async def nodes(self) -> list[Link]:
        await self.until_known()
        return [await self._link(host) for host in sorted(set(self._owners.values()))]

    def owner(self, slot: int) -> Host:
        """As far as is known; of a slot that nobody has, any of the hosts that we were told of."""
        return self._owners.get(slot) or random.choice(self._server.hosts)

    def connect(self, slot: int) -> AbstractConnection:
        """A connection to the slot's owner, unconnected."""
        return self._maker(self.owner(slot))()

    async def send(self, commands: Sequence[Command]) -> list[Reply]:
        """As `Link.send`. Only what goes to one node has an order."""
        await self.until_known()
        replies: list[Reply] = [None] * len(commands)
        units = list(_units(commands))
        for _ in range(MOVES):
            await self._send(units, commands, replies)
            moved = {unit: host for unit in units if (host := self._moved_to(unit, replies))}
            if not moved:
                break
            units = list(moved)
            self._look.set()
            await self._own({unit.slot: host for unit, host in moved.items()})
        return replies

    async def _send(self, units: Iterable[_Unit], commands: Sequence[Command], replies: list[Reply]) -> None:
        shares: defaultdict[Host, list[int]] = defaultdict(list)
        for unit in units:
            shares[self.owner(unit.slot)] += unit.places

        async def deliver(host: Host, places: list[int]) -> None:
            link = await self._link(host)
            for place, reply in zip(places, await link.send([commands[place] for place in places]), strict=True):
                replies[place] = reply

        try:
            await asyncio.gather(*(deliver(host, places) for host, places in shares.items()))
        except BusUnavailable:
            self._look.set()
            raise

    def _moved_to(self, unit: _Unit, replies: Sequence[Reply]) -> Host | None:
        for place in unit.places:
            words = str(replies[place]).split() if isinstance(replies[place], ResponseError) else []
            if words[:1] == ["MOVED"]:
                name, _, port = words[2].rpartition(":")
                return Host(name or self.owner(unit.slot).name, int(port))
        return None

    async def _own(self, owners: Mapping[int, Host]) -> None:
        if not owners.items() <= self._owners.items():
            self._owners |= owners
            await self.on_change()

    def _maker(self, host: Host) -> Callable[[], AbstractConnection]:
        if host not in self._makers:
            self._makers[host] = connection_factory(self._server.at(host), self._name)
        return self._makers[host]

    async def _link(self, host: Host) -> Link:
        if host not in self._links:
            self._links[host] = Link(self._maker(host))
            await self._links[host].__aenter__()
        return self._links[host]

    async def until_known(self) -> None:
        """Raises BusUnavailable."""
        if self._is_known.is_set():
            return
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._is_known.wait()
        except TimeoutError:
            why = f": {self._fault.message}" if self._fault else "."
            raise BusUnavailable(f"No node of the queue's Cluster says who owns what{why}") from self._fault

    async def _keep_looking(self) -> None:
        while True:
            self._look.clear()
            await self._look_around()
            await asyncio.sleep(LOOK_PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._look.wait()

    async def _look_around(self) -> None:
        """Who answers first is believed: those who are away take long to say so."""
        hosts = {*self._owners.values(), *self._server.hosts}
        looks = [asyncio.create_task(self._owners_by(host)) for host in hosts]
        try:
            for look in asyncio.as_completed(looks):
                if owners := await look:
                    await self._own(owners)
                    self._is_known.set()
                    return
        finally:
            for task in looks:
                task.cancel()

    async def _owners_by(self, host: Host) -> dict[int, Host]:
        """What one node says; nothing when it does not answer."""
        try:
            [reply] = await ask(await self._link(host), [("CLUSTER", "SLOTS")], tries=1)
        except (BusUnavailable, ConfigError, ResponseError) as error:
            self._fault = error if isinstance(error, BusUnavailable) else unavailable(error)
            log.debug("a node of the cluster does not answer", host=host.name, port=host.port, error=str(error))
            return {}
        return owners_in(reply, host)


class ClusterSubscriber:
    """A `Subscriber` for each slot, on the node that owns it: only there a script sees that somebody listens."""

    def __init__(self, link: ClusterLink) -> None:
        self._link = link
        self._subscribers: dict[int, Subscriber] = {}
        self._hosts: dict[int, Host] = {}
        """To which each has its connection."""
        link.on_change = self._follow

    async def __aenter__(self) -> ClusterSubscriber:
        return self

    async def __aexit__(self, *_: object) -> None:
        for subscriber in self._subscribers.values():
            await subscriber.__aexit__()

    @asynccontextmanager
    async def listen(self, channels: Collection[str], limit: int) -> AsyncIterator[Inbox]:
        """As `Subscriber.listen`."""
        await self._link.until_known()
        inbox = Inbox(limit)
        by_slot: defaultdict[int, list[str]] = defaultdict(list)
        for channel in channels:
            by_slot[key_slot(channel.encode())].append(channel)
        async with AsyncExitStack() as joined:
            for slot, names in by_slot.items():
                subscriber = await self._subscriber(slot)
                await joined.enter_async_context(subscriber.join(names, inbox))
            yield inbox

    async def _subscriber(self, slot: int) -> Subscriber:
        def connect() -> AbstractConnection:
            self._hosts[slot] = self._link.owner(slot)
            return self._link.connect(slot)

        if slot not in self._subscribers:
            self._subscribers[slot] = Subscriber(connect)
            await self._subscribers[slot].__aenter__()
        return self._subscribers[slot]

    async def _follow(self) -> None:
        for slot, host in list(self._hosts.items()):
            if self._link.owner(slot) != host:
                await self._subscribers[slot].reconnect()


def owners_in(reply: Reply, host: Host) -> dict[int, Host]:
    """By slot, from what `host` answers to CLUSTER SLOTS."""
    return {
        slot: Host(primary[0].decode() or host.name, primary[1])
        for first, last, primary, *_ in reply
        for slot in range(first, last + 1)
    }


async def _do_nothing() -> None:
    pass


def _units(commands: Sequence[Command]) -> Iterator[_Unit]:
    """What has no key itself goes with the next one that has, or the last."""
    slots = [_slot(command) for command in commands]
    first = 0
    last_slot = next((slot for slot in slots if slot is not None), 0)
    is_open = False
    for place, (command, slot) in enumerate(zip(commands, slots, strict=True)):
        is_open = is_open or command[0] == "MULTI"
        if slot is not None:
            last_slot = slot
        if command[0] == "EXEC" or (slot is not None and not is_open):
            yield _Unit(last_slot, range(first, place + 1))
            first, is_open = place + 1, False
    if first < len(commands):
        yield _Unit(last_slot, range(first, len(commands)))


def _slot(command: Command) -> int | None:
    if command[0] == "EVALSHA":
        key = command[3] if command[2] else None
    else:
        key = None if command[0] in _WITHOUT_KEY else command[1]
    if key is None:
        return None
    return key_slot(key if isinstance(key, bytes) else str(key).encode())
