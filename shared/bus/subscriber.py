"""The one connection of a process on which channels are listened to. Knows nothing of what is said there.

A channel keeps nothing for the late: whatever was said while the connection was away is lost, and an inbox that nobody
empties is thrown away when it is full. Both show as `missed`, after which a listener must look elsewhere.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Protocol

import structlog
from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from shared.bus.connect import CONNECT_TIMEOUT_S, REPLY_TIMEOUT_S, broken_as_os_error, close
from shared.errors import BusUnavailable

PING_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 2.0
"""Between two attempts to connect."""

log = structlog.get_logger(__name__)


class Inbox:
    """What was said on some channels since somebody last looked."""

    __slots__ = ("_limit", "_news", "messages", "missed")

    def __init__(self, limit: int) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        """(channel, payload), oldest first. A few at most; thousands of streams have one of these, and an empty deque
        takes ten times the room of a list, as does an event."""
        self.missed = False
        """Something may have been said that is not in `messages`. The listener clears it."""
        self._limit = limit
        self._news: asyncio.Future[None] | None = None
        """What the listener waits for."""

    def push(self, channel: bytes, payload: bytes) -> None:
        if len(self.messages) >= self._limit:
            self.miss()
        self.messages.append((channel, payload))
        self._wake()

    def miss(self) -> None:
        self.messages.clear()
        self.missed = True
        self._wake()

    async def wait(self, timeout_s: float | None) -> None:
        """Returns when there may be something to look at, or the time is over."""
        if self.messages or self.missed:
            return
        self._news = asyncio.get_running_loop().create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class _Channel:
    __slots__ = ("confirmed", "inboxes", "was_confirmed")

    def __init__(self) -> None:
        self.inboxes: set[Inbox] = set()
        self.confirmed = asyncio.Event()
        self.was_confirmed = False


class Listener(Protocol):
    """What a `Subscriber` is to those who listen."""

    def listen(self, channels: Collection[str], limit: int) -> AbstractAsyncContextManager[Inbox]: ...


class Subscriber:
    """Open with `async with`; who opens closes. Reconnects by itself for as long as it is open."""

    def __init__(self, connect: Callable[[], AbstractConnection]) -> None:
        self._connect = connect
        self._connection: AbstractConnection | None = None
        self._channels: dict[bytes, _Channel] = {}
        self._unconfirmed: Counter[bytes] = Counter()
        """SUBSCRIBEs that were sent on this connection and not answered; only the last answer confirms."""
        self._heard_at = 0.0
        self._has_heard = False
        """Anything at all, on this connection."""
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    async def __aenter__(self) -> Subscriber:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @asynccontextmanager
    async def listen(self, channels: Collection[str], limit: int) -> AsyncIterator[Inbox]:
        """An inbox that gets everything said from now on. Raises BusUnavailable when the server does not confirm."""
        inbox = Inbox(limit)
        async with self.join(channels, inbox):
            yield inbox

    @asynccontextmanager
    async def join(self, channels: Collection[str], inbox: Inbox) -> AsyncIterator[None]:
        """The same for an inbox that there is."""
        names = [channel.encode() for channel in channels]
        fresh = [name for name in names if name not in self._channels]
        for name in names:
            self._channels.setdefault(name, _Channel()).inboxes.add(inbox)
        self._wanted.set()
        try:
            await self._say("SUBSCRIBE", fresh)
            await self._confirmations(names)
            yield
        finally:
            await self._leave(names, inbox)

    async def reconnect(self) -> None:
        """Begins a new connection, which may lead elsewhere."""
        if self._connection:
            await close(self._connection)

    async def _confirmations(self, names: list[bytes]) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                for name in names:
                    await self._channels[name].confirmed.wait()
        except TimeoutError:
            raise BusUnavailable("The queue's server does not confirm a subscription.") from None

    async def _leave(self, names: list[bytes], inbox: Inbox) -> None:
        empty = []
        for name in names:
            channel = self._channels[name]
            channel.inboxes.discard(inbox)
            if not channel.inboxes:
                del self._channels[name]
                empty.append(name)
        await self._say("UNSUBSCRIBE", empty)

    async def _say(self, command: str, names: list[bytes]) -> None:
        """Sends if there is a connection; if there is none, the next one begins with what is wanted by then."""
        connection = self._connection
        # Nothing may come between this look and the write: a closed connection would open itself again.
        if not names or connection is None or not connection.is_connected:
            return
        if command == "SUBSCRIBE":
            self._unconfirmed.update(names)
        # The reader of this connection meets the same end.
        with suppress(exceptions.RedisError, OSError), broken_as_os_error():
            await connection.send_command(command, *names)

    async def _run(self) -> None:
        await self._wanted.wait()
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self._session()
            except (exceptions.RedisError, OSError) as error:
                log.warning("the subscriber has no connection", error=str(error))
            # A server that takes connections and says nothing on them is no better than one that takes none.
            pause_s = FIRST_PAUSE_S if self._has_heard else min(LONGEST_PAUSE_S, 2 * pause_s)
            self._forget_session()
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))

    async def _session(self) -> None:
        """One connection, from its first word to its end, which is always an error."""
        connection = self._connect()
        watch: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                with broken_as_os_error():
                    await connection.connect()  # type: ignore[no-untyped-call]
            self._connection = connection
            self._heard_at = asyncio.get_running_loop().time()
            watch = asyncio.create_task(self._watch(connection))
            await self._say("SUBSCRIBE", list(self._channels))
            while True:
                self._hear(await connection.read_response(disconnect_on_error=False))
        finally:
            if watch:
                watch.cancel()
            await close(connection)

    async def _watch(self, connection: AbstractConnection) -> None:
        """Ends a connection on which not even a ping is answered: half-open ones look like silence."""
        while connection.is_connected:
            await asyncio.sleep(PING_S)
            if asyncio.get_running_loop().time() - self._heard_at > 2 * PING_S:
                await close(connection)
            elif connection.is_connected:
                with suppress(exceptions.RedisError, OSError), broken_as_os_error():
                    await connection.send_command("PING")

    def _hear(self, message: list[bytes]) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._has_heard = True
        kind, name = message[0], message[1]
        channel = self._channels.get(name)
        if kind == b"subscribe":
            self._unconfirmed[name] -= 1
            if self._unconfirmed[name] > 0:
                return
            del self._unconfirmed[name]
            if channel:
                self._confirm(channel)
        elif kind == b"message" and channel:
            for inbox in channel.inboxes:
                inbox.push(name, message[2])

    def _confirm(self, channel: _Channel) -> None:
        if channel.was_confirmed:
            for inbox in channel.inboxes:
                inbox.miss()
        channel.was_confirmed = True
        channel.confirmed.set()

    def _forget_session(self) -> None:
        self._connection, self._has_heard = None, False
        self._unconfirmed.clear()
        for channel in self._channels.values():
            channel.confirmed.clear()
