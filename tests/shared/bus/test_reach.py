"""How a process comes to its bus."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shared.bus import open_bus
from shared.settings import BusSettings
from tests.chaos.proxy import Proxy
from tests.chaos.server import Server


class Forgetful(Proxy):
    """Cuts the connection when the server is asked what it is, as often as it is told to."""

    n_left = 4

    async def _up(self, client: asyncio.StreamReader, server: asyncio.StreamWriter, asked: asyncio.Event) -> None:
        while chunk := await client.read(65536):
            if b"INFO" in chunk and self.n_left:
                self.n_left -= 1
                return
            await self._pass_on(chunk, server)


async def test_a_server_that_goes_away_between_two_questions_is_waited_for(tmp_path: Path) -> None:
    async with Server("valkey", tmp_path) as server, Forgetful(server.port) as way:
        async with open_bus(BusSettings(redis_url=way.url), name="test") as bus:
            await asyncio.wait_for(bus.reach(), 20)
        assert way.n_left == 0
