"""What stands around a relayed answer: the watch for a client that goes."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from api.relay import Departure


class Client:
    """Says nothing until it goes."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_a_block_ends_without_an_error_when_its_client_goes() -> None:
    client = Client()
    async with Departure(client.receive):
        client.gone.set()
        await asyncio.Event().wait()
    await asyncio.sleep(0)


async def test_a_client_that_goes_at_the_end_hits_nothing_that_comes_after() -> None:
    client = Client()

    async def go_on() -> str:
        async with Departure(client.receive):
            client.gone.set()
            for _ in range(2):
                await asyncio.sleep(0)  # the watch sees it now, and cancels us in a moment
        await asyncio.sleep(0)
        return "went on"

    for _ in range(3):
        client.gone.clear()
        assert await asyncio.create_task(go_on()) == "went on"


async def test_somebody_elses_cancellation_goes_through() -> None:
    entered = asyncio.Event()

    async def block() -> None:
        async with Departure(Client().receive):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_block_goes_through() -> None:
    with pytest.raises(KeyError):
        async with Departure(Client().receive):
            raise KeyError("x")
