"""One place for all faults: a server of its own, an API, a worker and tasks, with a bad network between them.

Each test finds it well, and must leave it so without a restart of any role.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.faults.proxy import Proxy
from tests.faults.server import Server
from tests.models import tiny_model
from tests.stack import Role, Stack, ask

N_SLOTS = 4
CTX_SIZE = 16384


class Site:
    """The stack, its server, and the network between them."""

    def __init__(self, server: Server, network: Proxy, stack: Stack) -> None:
        self.server = server
        self.network = network
        self.stack = stack
        self.http = stack.http
        self.roles: list[Role] = []

    async def open(self) -> None:
        api = await self.stack.start_api(keep_alive_s=0.5)
        worker = await self.stack.start_worker(tiny_model(), ctx_size=CTX_SIZE, parallel=N_SLOTS)
        self.roles = [api, worker, self.stack.start("api.tasks")]

    async def status(self, path: str) -> int:
        return (await self.http.get(path)).status_code

    async def until_status(self, path: str, status: int) -> None:
        async def has_it() -> bool:
            return await self.status(path) == status

        await self.stack.until(has_it)

    async def check_refuses(self) -> httpx.Response:
        """A new job is refused for now: 503, when to come back, and readiness says the same."""
        await self.until_status("/ready", 503)
        assert await self.status("/health") == 503
        assert await self.status("/live") == 200
        response = await self.http.post("/v1/jobs", json={"endpoint": "/completion", "body": ask()})
        assert response.status_code == 503, response.text
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["type"] == "unavailable_error"
        return response

    async def check_well(self) -> None:
        """Healthy again, at work again, and nobody was started anew."""
        await self.until_status("/health", 200)
        response = await self.http.post("/completion", json=ask())
        assert response.status_code == 200, response.text
        for role in self.roles:
            assert role.process.poll() is None, role.log


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Site]:
    with Server(folder) as server:
        async with Proxy(server.socket) as network:
            stack = Stack(network.url, folder)
            stack.environment["SLOTSTREAM_LEASE_S"] = "5"
            try:
                site = Site(server, network, stack)
                await site.open()
                yield site
            finally:
                await stack.close()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def one_site() -> AsyncIterator[Site]:
    with tempfile.TemporaryDirectory(prefix="ss") as folder:
        async with opened(Path(folder)) as site:
            yield site


@pytest_asyncio.fixture(loop_scope="session")
async def site(one_site: Site) -> AsyncIterator[Site]:
    """Well before and well after."""
    await one_site.check_well()
    yield one_site
    await one_site.check_well()


@pytest.fixture(scope="session")
def model() -> Path:
    return tiny_model()
