"""What is called, and how: redirects, cookies, proxies of the environment and compressed bodies have no part in it."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import Any, NamedTuple, Self

import aiohttp
import structlog
from aiohttp.abc import AbstractResolver
from yarl import URL

from api.outgoing.guard import Guard, network_of
from api.outgoing.resolver import Resolver
from api.outgoing.target import host_of, shown, target_of
from api.schemas.strict import bad_field

USER_AGENT = "slotstream"

MAX_ANSWER = 8192
"""Bytes that are read of the answer to what was posted; its status counts, and the rest is for people."""
ANSWER_S = 1.0
"""For which these are waited for, once the status is there."""

RESOLVE_S = 3.0
"""For which an answer is waited for when a URL is only looked at."""

NOT_REACHED = "could not be reached, or may not be called from here"
WHO_MAY = "the server's --allow-hosts says what else may be"
"""Whoever runs the server finds the setting; a client learns nothing of the network by it."""

MAX_REASON = 300
"""Characters in the log: some of what is no HTTP is repeated there."""

OUR_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What says nothing of whom we call."""

log = structlog.get_logger(__name__)


class Limits(NamedTuple):
    """At any time; who comes later waits within its own time limit."""

    calls: int = 16
    """0: any number."""
    calls_per_host: int = 4
    """0: any number."""
    lookups: int = 16
    """Names that are being resolved."""
    idle_s: float = 15.0
    """For which a connection is kept for the next call. A server that closes it just then costs that call."""


class Answered(NamedTuple):
    status: int
    retry_after: str | None
    """The header, as it was sent."""
    beginning: bytes
    """Of the body: MAX_ANSWER bytes at most."""


class Unanswered(NamedTuple):
    """Whether it was heard nobody knows."""

    reason: str
    """What a sentence about the receiver goes on with, for whom the URL is of. One that may not be called and a dead
    one get the same: else a client could map the network behind us."""


class Outgoing:
    """Calls to the Internet, and to hosts that the operator allowed."""

    def __init__(
        self,
        guarded: aiohttp.ClientSession,
        trusting: aiohttp.ClientSession,
        guard: Guard,
        resolver: AbstractResolver,
        names: frozenset[str],
    ) -> None:
        self._guarded, self._trusting = guarded, trusting
        self._guard, self._resolver = guard, resolver
        self._names = names

    @classmethod
    @asynccontextmanager
    async def open(
        cls, allow_hosts: Sequence[str] = (), *, resolver: AbstractResolver | None = None, limits: Limits | None = None
    ) -> AsyncIterator[Self]:
        """`allow_hosts` are names, addresses and networks that may be private and have any port."""
        limits = limits or Limits()
        networks = [network for text in allow_hosts if (network := network_of(text))]
        names = frozenset(text.lower().rstrip(".") for text in allow_hosts if not network_of(text))
        guard = Guard(networks)
        resolver = resolver or Resolver(limits.lookups)
        trust = ssl.create_default_context()
        trust.set_alpn_protocols(("http/1.1",))
        try:
            async with (
                _session(resolver, trust, limits, socket_factory=guard.open_socket) as guarded,
                _session(resolver, trust, limits) as trusting,
            ):
                yield cls(guarded, trusting, guard, resolver, names)
        finally:
            await resolver.close()

    async def examine(self, url: str, field: str) -> None:
        """Returns when `url` may be called, as far as can be told now: each call looks again.

        InvalidRequest, which names `field`, when it is no URL of the web, when one of its addresses may not be reached,
        or when nobody knows its name. The last two get the same sentence: else a client could find out which names
        there are in the network behind us.
        """
        target = target_of(url, field)
        host, port = host_of(target), target.port or 0
        if host in self._names:
            return
        try:
            async with asyncio.timeout(RESOLVE_S):
                found = await self._resolver.resolve(host, port, socket.AF_UNSPEC)
        except (OSError, ValueError, TimeoutError):  # ValueError: a name that DNS cannot hold
            found = []
        if not found or not all(self._guard.may_reach(ip_address(one["host"]), port) for one in found):
            log.info("not to be called", host=host, port=port, addresses=[one["host"] for one in found])
            raise bad_field(field, f"{shown(target)} cannot be found, or may not be called from here; {WHO_MAY}")

    async def fetch(self, url: str, field: str, *, max_bytes: int, timeout_s: float, accept: str = "*/*") -> bytes:
        """The body of what is at `url`, all of it within `timeout_s` seconds.

        InvalidRequest, which names `field`, when the address may not be asked, does not answer, or answers with
        anything but 200 and at most `max_bytes`. A refused address and a dead one get the same sentence: else a client
        could map the network behind us.
        """
        target = target_of(url, field)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._get(target, field, max_bytes, accept)
        # ValueError: a name that DNS cannot hold, or no address after all, is found out only on the way.
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            log.info("not fetched", host=target.host, port=target.port, reason=_reason(error))
        raise bad_field(field, f"{shown(target)} did not answer in time, or may not be asked from here; {WHO_MAY}")

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float
    ) -> Answered | Unanswered:
        """Sends `body` as it is. The answer must begin within `timeout_s` seconds, from the look-up of the name on;
        whatever its status, it is an answer.

        OSError when this machine has no room for another call. InvalidRequest when `url` is none of the web.
        """
        target = target_of(url, "url")
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._session_for(target).post(
                    target, data=body, headers=headers, allow_redirects=False
                )
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            if isinstance(error, OSError) and error.errno in OUR_FAULT:
                raise
            log.info("not answered", host=target.host, port=target.port, reason=_reason(error))
            return Unanswered(_sentence(error, timeout_s))
        return Answered(response.status, response.headers.get("Retry-After"), await _beginning(response))

    async def _get(self, target: URL, field: str, max_bytes: int, accept: str) -> bytes:
        session = self._session_for(target)
        async with session.get(target, allow_redirects=False, headers={"Accept": accept}) as response:
            if 300 <= response.status < 400:
                raise bad_field(field, f"{shown(target)} answers with a redirect, and none is followed")
            if response.status != 200:
                raise bad_field(field, f"{shown(target)} answers with status {response.status}")
            too_large = bad_field(field, f"what {shown(target)} sends is larger than {max_bytes / 1e6:g} MB")
            if (response.content_length or 0) > max_bytes:
                raise too_large
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > max_bytes:
                    raise too_large
            return bytes(body)

    def _session_for(self, target: URL) -> aiohttp.ClientSession:
        return self._trusting if host_of(target) in self._names else self._guarded


def _session(
    resolver: AbstractResolver, trust: ssl.SSLContext, limits: Limits, **connector: Any
) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=limits.calls,
            limit_per_host=limits.calls_per_host,
            keepalive_timeout=limits.idle_s,
            resolver=resolver,
            use_dns_cache=False,
            ssl=trust,
            **connector,
        ),
        connector_owner=True,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
        auto_decompress=False,  # a small body must not become a large one
        timeout=aiohttp.ClientTimeout(total=None),  # each call has its own
        trust_env=False,
    )


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """What comes of its body in a moment. Whatever becomes of it, the answer is there."""
    body = b""
    try:
        with suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
            async with asyncio.timeout(ANSWER_S):
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > MAX_ANSWER:
                        break
    finally:
        response.release() if response.content.at_eof() else response.close()
    return body[:MAX_ANSWER]


def _reason(error: Exception) -> str:
    """For the log, without the URL that some errors repeat: its path and query may be somebody's secret."""
    match error:
        case aiohttp.InvalidURL():
            text = ""
        case aiohttp.ClientResponseError():
            text = error.message
        case _:
            text = str(error)
    return f"{type(error).__name__}: {text}"[:MAX_REASON]


def _sentence(error: Exception, timeout_s: float) -> str:
    """What went wrong, for whom the URL is of. What comes of a connection that was made may be told: it was allowed."""
    match error:
        case TimeoutError():
            return f"did not answer within {timeout_s:g} s"
        case aiohttp.ClientConnectorCertificateError(certificate_error=ssl.SSLCertVerificationError() as refused):
            return f"has a certificate that is not trusted: {refused.verify_message}"
        case aiohttp.ClientSSLError():
            return "could not agree on TLS"
        case aiohttp.ClientResponseError():
            return "answered with what is no HTTP"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
            return "closed the connection without an answer"
        case aiohttp.ClientConnectorError() | aiohttp.InvalidURL():
            return NOT_REACHED
        case aiohttp.ClientOSError():
            return "broke the connection off"
    return NOT_REACHED
