"""Addresses of names, asked for in threads that nobody else waits for."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult


class Resolver(AbstractResolver):
    """The machine's own. A name whose servers are silent holds a thread for as long as the machine has patience, also
    when we have none left."""

    def __init__(self, n_threads: int) -> None:
        self._threads = ThreadPoolExecutor(n_threads, thread_name_prefix="resolve")

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
