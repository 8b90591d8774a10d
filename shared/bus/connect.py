"""Connections to the server, and what their errors mean. Knows nothing of jobs.

A `Link` carries the commands of all tasks of a process over a few connections: what gathers while one round trip is
under way goes out together in the next. A lone command waits for nobody, and a thousand need few round trips.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

import hiredis
import redis
import redis.asyncio
import structlog
from redis import exceptions
from redis.asyncio.connection import AbstractConnection, ConnectionPool, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from shared.bus.address import Address
from shared.errors import BusUnavailable
from shared.settings import ConfigError

Command: TypeAlias = tuple[str | bytes | int | float, ...]
Reply: TypeAlias = Any
"""Bytes, integers, None or lists of them; in `Link.send` also the error with which a command was refused."""

CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 10.0
"""Longer than a script may hold up the server, shorter than anybody should wait for a half-open connection."""

SENTINEL_TIMEOUT_S = 1.0
"""For each sentinel: those of machines that are off come before one that answers."""

_REFUSALS = (
    *("OOM", "MISCONF", "READONLY", "LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS"),
    *("CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK"),  # of a Cluster that changes
)

log = structlog.get_logger(__name__)


def is_refusal(error: Exception) -> bool:
    """The server is there, but will not do this now; later it may."""
    if isinstance(error, exceptions.BusyLoadingError | exceptions.ReadOnlyError | exceptions.OutOfMemoryError):
        return True
    words = str(error).split(maxsplit=1)
    return (
        isinstance(error, exceptions.ResponseError)
        and bool(words)
        # The other says that the rest of a partition is on its way to another node.
        and (words[0].lstrip("-") in _REFUSALS or "access a non local key" in str(error))
    )


def unavailable(error: BaseException) -> BusUnavailable:
    reason = str(error).rstrip(".") or type(error).__name__
    refusal = BusUnavailable(f"The queue's server cannot be used now: {reason}.")
    refusal.__cause__ = error
    return refusal


def distrust(error: BaseException | None) -> str | None:
    """Why the server's certificate was not accepted, when that is what is behind an error."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        error = error.__cause__ or error.__context__
    return None


def connection_pool(address: Address, name: str, **options: Any) -> ConnectionPool:
    """Makes asyncio connections to the server, or to whichever the sentinels call the primary when one is opened.

    Raises ConfigError when its certificates cannot be used.
    """
    pool: ConnectionPool = _pool(redis.asyncio, address, name, {"socket_connect_timeout": CONNECT_TIMEOUT_S} | options)
    connection = pool.make_connection()  # type: ignore[no-untyped-call]
    if isinstance(connection, SSLConnection):
        try:
            connection.ssl_context.get()
        except (OSError, ValueError) as error:
            files = ", ".join(filter(None, (connection.ca_certs, connection.certfile, connection.keyfile)))
            raise ConfigError(f"--redis-url: cannot use the certificates in {files}: {error}") from None
    return pool


def connection_factory(address: Address, name: str) -> Callable[[], AbstractConnection]:
    """Makes asyncio connections, unconnected. Raises ConfigError as `connection_pool`."""
    # Retries are ours: only we know what may be said twice.
    return connection_pool(address, name, retry=Retry(NoBackoff(), 0), health_check_interval=0).make_connection


def blocking_client(address: Address, name: str, timeout_s: float) -> redis.Redis:
    """A client for a thread without asyncio; every wait is bounded by `timeout_s`."""
    timeouts = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    return redis.Redis.from_pool(_pool(redis, address, name, timeouts))


def _pool(library: Any, address: Address, name: str, options: Mapping[str, Any]) -> Any:
    """redis-py has everything twice under the same names, in `redis` for threads and in `redis.asyncio`."""
    options = {
        "client_name": "".join(letter if "!" <= letter <= "~" else "-" for letter in name),
        **address.options,
        **options,
    }
    if not address.hosts:
        return library.ConnectionPool(connection_class=library.UnixDomainSocketConnection, **options)
    options["socket_keepalive"] = True
    if address.primary:
        timeout_s = min(SENTINEL_TIMEOUT_S, options["socket_connect_timeout"])
        theirs = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, **address.sentinel_options}
        sentinels = (Sentinels if library is redis.asyncio else redis.Sentinel)(address.hosts, sentinel_kwargs=theirs)
        return library.SentinelConnectionPool(address.primary, sentinels, ssl=address.is_tls, **options)
    [(host, port)] = address.hosts
    connection_class = library.SSLConnection if address.is_tls else library.Connection
    return library.ConnectionPool(connection_class=connection_class, host=host, port=port, **options)


class Sentinels(redis.asyncio.Sentinel):
    """Leaves no connection behind, since whoever only makes connections has no moment to close others, and says why
    nothing was found."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        fault: Exception | None = None
        for sentinel in self.sentinels:
            try:
                primary = (await sentinel.sentinel_masters()).get(service_name)  # type: ignore[no-untyped-call]
            except (exceptions.RedisError, OSError) as error:
                fault = error
            else:
                if primary and self.check_master_state(primary, service_name):
                    return primary["ip"], primary["port"]
            finally:
                await sentinel.connection_pool.disconnect(inuse_connections=False)
        reason = f"no sentinel knows a living primary {service_name!r}"
        raise exceptions.ConnectionError(f"{reason} ({fault})" if fault else reason) from fault


class Sender(Protocol):
    """What a `Link` is to those who send."""

    async def send(self, commands: Sequence[Command]) -> list[Reply]: ...

    async def nodes(self) -> Sequence[Sender]:
        """Each server that is behind it. Raises BusUnavailable."""
        ...


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

    async def nodes(self) -> Sequence[Sender]:
        return [self]

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
                    is_demoted = is_demoted or any(map(_may_be_demoted, replies))
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


def _may_be_demoted(reply: Reply) -> bool:
    """It only reads; or its replicas have left it, perhaps for a new primary."""
    return isinstance(reply, exceptions.ResponseError) and (
        isinstance(reply, exceptions.ReadOnlyError) or str(reply).startswith("NOREPLICAS")
    )


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
