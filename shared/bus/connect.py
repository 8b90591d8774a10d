"""Connections to the server, and what their errors mean. Knows nothing of jobs.

A `Link` carries the commands of all tasks of a process over a few connections: what gathers while one round trip is
under way goes out together in the next. A lone command waits for nobody, and a thousand need few round trips.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeAlias

import hiredis
import redis
import structlog
from redis import exceptions
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from shared.errors import BusUnavailable
from shared.settings import BusSettings, ConfigError

Command: TypeAlias = tuple[str | bytes | int | float, ...]
Reply: TypeAlias = Any
"""Bytes, integers, None or lists of them; in `Link.send` also the error with which a command was refused."""

CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 10.0
"""Longer than a script may hold up the server, shorter than anybody should wait for a half-open connection."""

_REFUSALS = ("OOM", "MISCONF", "READONLY", "LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN")

log = structlog.get_logger(__name__)


def is_refusal(error: Exception) -> bool:
    """The server is there, but will not do this now; later it may."""
    if isinstance(error, exceptions.BusyLoadingError | exceptions.ReadOnlyError | exceptions.OutOfMemoryError):
        return True
    words = str(error).split(maxsplit=1)
    return isinstance(error, exceptions.ResponseError) and bool(words) and words[0].lstrip("-") in _REFUSALS


def unavailable(error: BaseException) -> BusUnavailable:
    return BusUnavailable(f"The queue's server cannot be used now: {error or type(error).__name__}.")


def connection_options(settings: BusSettings, name: str) -> dict[str, Any]:
    """What every connection of ours has, as keyword arguments of redis-py's `from_url`."""
    is_socket = settings.redis_url.get_secret_value().startswith("unix:")
    return {
        "url": settings.redis_url.get_secret_value(),
        "client_name": "".join(letter if "!" <= letter <= "~" else "-" for letter in name),
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
    } | ({} if is_socket else {"socket_keepalive": True})


def connection_factory(settings: BusSettings, name: str) -> Callable[[], AbstractConnection]:
    """Makes asyncio connections, unconnected. Raises ConfigError when the URL is none of ours."""
    try:
        pool = ConnectionPool.from_url(
            **connection_options(settings, name),
            retry=Retry(NoBackoff(), 0),  # retries are ours: only we know what may be said twice
            health_check_interval=0,
        )
        # A URL may carry options, and only now are unknown ones noticed.
        pool.make_connection()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--redis-url: {error}") from None
    return pool.make_connection


def blocking_client(settings: BusSettings, name: str, timeout_s: float) -> redis.Redis:
    """A client for a thread without asyncio; every wait is bounded by `timeout_s`."""
    options = connection_options(settings, name) | {"socket_connect_timeout": timeout_s}
    return redis.Redis.from_url(**options, socket_timeout=timeout_s)


class _Parcel(NamedTuple):
    """Commands that stay together, and who waits for their replies."""

    n_commands: int
    packed: bytes
    replies: asyncio.Future[list[Reply]]


class Link:
    """Shared round trips. Open with `async with`; who opens closes."""

    CONNECTIONS = 2
    COMMANDS = 512
    """In one round trip at most."""

    def __init__(self, connect: Callable[[], AbstractConnection]) -> None:
        self._connect = connect
        self._waiting: asyncio.Queue[_Parcel] = asyncio.Queue()
        self._carriers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Link:
        self._carriers = [asyncio.create_task(self._carry()) for _ in range(self.CONNECTIONS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for carrier in self._carriers:
            carrier.cancel()
        await asyncio.gather(*self._carriers, return_exceptions=True)
        while not self._waiting.empty():
            _fail([self._waiting.get_nowait()], BusUnavailable("The bus was closed."))

    async def send(self, commands: Sequence[Command]) -> list[Reply]:
        """The replies, in order; what the server refused has its error in its place.

        Raises BusUnavailable when no reply came: then each of the commands may have run, or not.
        """
        packed = b"".join([hiredis.pack_command(command) for command in commands])  # type: ignore[arg-type]
        replies: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(_Parcel(len(commands), packed, replies))
        return await replies

    async def _carry(self) -> None:
        connection = self._connect()
        try:
            while True:
                parcels = [await self._waiting.get()]
                n_commands = parcels[0].n_commands
                while n_commands < self.COMMANDS and not self._waiting.empty():
                    parcels.append(self._waiting.get_nowait())
                    n_commands += parcels[-1].n_commands
                await self._deliver(connection, parcels)
        finally:
            await close(connection)

    async def _deliver(self, connection: AbstractConnection, parcels: list[_Parcel]) -> None:
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await _drop_dead(connection)
                with broken_as_os_error():
                    await connection.send_packed_command([parcel.packed for parcel in parcels])
                is_demoted = False
                for parcel in parcels:
                    replies = [await _reply(connection) for _ in range(parcel.n_commands)]
                    is_demoted = is_demoted or any(isinstance(reply, exceptions.ReadOnlyError) for reply in replies)
                    if not parcel.replies.done():
                        parcel.replies.set_result(replies)
            if is_demoted:
                # After a failover the name leads to the new primary, and only this connection still to the old one.
                await close(connection)
        except (exceptions.RedisError, OSError) as error:
            await close(connection)
            _fail(parcels, unavailable(error))
        except BaseException as error:
            await close(connection)
            is_cancelled = isinstance(error, asyncio.CancelledError)
            _fail(parcels, BusUnavailable("The bus was closed.") if is_cancelled else error)
            if not isinstance(error, Exception):
                raise


@contextmanager
def broken_as_os_error() -> Iterator[None]:
    """Around whatever writes. A connection that broke a moment ago, before its reader has heard so, is an OSError
    to asyncio's own loop, and a RuntimeError to uvloop's."""
    try:
        yield
    except RuntimeError as error:
        if "handler is closed" not in str(error):
            raise
        raise ConnectionResetError(str(error)) from error


async def _drop_dead(connection: AbstractConnection) -> None:
    """Closes a connection that the server has closed, so that it is opened anew instead of losing what is sent."""
    if connection.is_connected:
        try:
            is_out_of_step = await connection.can_read_destructive()  # type: ignore[no-untyped-call]
        except (exceptions.RedisError, OSError):
            is_out_of_step = True
        if is_out_of_step:
            await close(connection)


async def _reply(connection: AbstractConnection) -> Reply:
    try:
        return await connection.read_response(disconnect_on_error=False)
    except (exceptions.ResponseError, exceptions.BusyLoadingError) as error:
        return error


def _fail(parcels: Iterable[_Parcel], error: BaseException) -> None:
    for parcel in parcels:
        if not parcel.replies.done():
            parcel.replies.set_exception(error)


async def close(connection: AbstractConnection) -> None:
    """Closes without waiting: whatever was under way on it is not read any more."""
    with suppress(exceptions.RedisError, OSError):
        await connection.disconnect(nowait=True)


async def persist(attempt: Callable[[], Awaitable[Reply]], tries: int) -> Reply:
    """Runs what may be said twice until the server answers, at most `tries` times within about a second."""
    for round_ in range(tries - 1):
        try:
            return await attempt()
        except BusUnavailable:
            await asyncio.sleep(0.05 * 3**round_ * random.uniform(0.5, 1.5))
    return await attempt()
