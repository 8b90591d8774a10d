"""Calls to addresses that a client named: images, and whatever else is fetched or told on a client's word.

The guard stands where a socket is made and looks at the address that the socket is about to be connected to. However a
name is written, and whatever it resolves to the next time, no other address is ever reached. Knows no route, and
nothing of what it fetches.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any, Self

import aiohttp
import structlog
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from api.addresses import Address, Network, is_public, is_within
from api.schemas.strict import bad_field

PORTS = (80, 443)
"""Of hosts that are not allowed by name or network: on others listens what never expected to be spoken to by HTTP."""

MAX_URL = 8192
"""Characters."""

MAX_CALLS, MAX_CALLS_PER_HOST = 16, 4
"""At any time; who comes later waits within its own time limit."""

USER_AGENT = "slotstream"

log = structlog.get_logger(__name__)


class Outgoing:
    """Fetches from the Internet, and from hosts that the operator allowed. Redirects, cookies, proxies of the
    environment and compressed bodies have no part in it."""

    def __init__(self, guarded: aiohttp.ClientSession, trusting: aiohttp.ClientSession, names: frozenset[str]) -> None:
        self._guarded, self._trusting = guarded, trusting
        self._names = names

    @classmethod
    @asynccontextmanager
    async def open(
        cls, allow_hosts: Sequence[str] = (), *, resolver: AbstractResolver | None = None
    ) -> AsyncIterator[Self]:
        """`allow_hosts` are names, addresses and networks that may be private and have any port."""
        networks = [network for text in allow_hosts if (network := _network(text))]
        names = frozenset(text.lower().rstrip(".") for text in allow_hosts if not _network(text))
        guard = Guard(networks)
        resolver = resolver or Resolver()
        try:
            async with (
                _session(resolver, socket_factory=guard.open_socket) as guarded,
                _session(resolver) as trusting,
            ):
                yield cls(guarded, trusting, names)
        finally:
            await resolver.close()

    async def fetch(self, url: str, field: str, *, max_bytes: int, timeout_s: float, accept: str = "*/*") -> bytes:
        """The body of what is at `url`, all of it within `timeout_s` seconds.

        InvalidRequest, which names `field`, when the address may not be asked, does not answer, or answers with
        anything but 200 and at most `max_bytes`. A refused address and a dead one get the same sentence: else a client
        could map the network behind us.
        """
        target = _target(url, field)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._get(target, field, max_bytes, accept)
        # ValueError: a name that DNS cannot hold, or no address after all, is found out only on the way.
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            log.info("not fetched", host=target.host, port=target.port, reason=f"{type(error).__name__}: {error}")
        raise bad_field(field, f"{_shown(target)} did not answer in time, or may not be asked from here")

    async def _get(self, target: URL, field: str, max_bytes: int, accept: str) -> bytes:
        is_trusted = (target.host or "").lower().rstrip(".") in self._names
        session = self._trusting if is_trusted else self._guarded
        async with session.get(target, allow_redirects=False, headers={"Accept": accept}) as response:
            if 300 <= response.status < 400:
                raise bad_field(field, f"{_shown(target)} answers with a redirect, and none is followed")
            if response.status != 200:
                raise bad_field(field, f"{_shown(target)} answers with status {response.status}")
            too_large = bad_field(field, f"what {_shown(target)} sends is larger than {max_bytes / 1e6:g} MB")
            if (response.content_length or 0) > max_bytes:
                raise too_large
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > max_bytes:
                    raise too_large
            return bytes(body)


class Resolver(AbstractResolver):
    """The machine's own, in threads that nobody else waits for: a name whose servers are silent holds one for as long
    as the machine has patience, also when we have none left."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="resolve")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        look_up = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(hostname=host, host=str(address[0]), port=port, family=family, proto=protocol, flags=flags)
            for family, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class Guard:
    """Makes sockets for addresses that may be reached, and for no others."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = allowed

    def open_socket(self, address: tuple[Any, ...]) -> socket.socket:
        """A socket for one answer of `getaddrinfo`; PermissionError, an address that cannot be connected to."""
        family, kind, protocol, _, (host, port, *_) = address
        if not self.may_reach(ip_address(host), port):
            raise PermissionError(f"{host} port {port} may not be reached")
        return socket.socket(family, kind, protocol)

    def may_reach(self, address: Address, port: int) -> bool:
        return is_within(address, self._allowed) or (is_public(address) and port in PORTS)


def _session(resolver: AbstractResolver | None, **connector: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=MAX_CALLS, limit_per_host=MAX_CALLS_PER_HOST, resolver=resolver, use_dns_cache=False, **connector
        ),
        connector_owner=True,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
        auto_decompress=False,  # a small body must not become a large one
        timeout=aiohttp.ClientTimeout(total=None),  # each call has its own
        trust_env=False,
    )


def _target(url: str, field: str) -> URL:
    """The URL, if it is one that may be asked at all."""
    if len(url) > MAX_URL:
        raise bad_field(field, f"a URL may have {MAX_URL} characters at most")
    try:
        target = URL(url)
        host, _ = target.host, target.port
    except ValueError:
        raise bad_field(field, "this is not a URL") from None
    if target.scheme not in ("http", "https") or not host:
        raise bad_field(field, "a URL must begin with http:// or https:// and name a host")
    if target.user is not None or target.password is not None:
        raise bad_field(field, "a URL with a user or password in it is not asked")
    return target


def _network(text: str) -> Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _shown(target: URL) -> str:
    """The host as the client wrote it: it learns no address from us."""
    return target.authority[:100]
