"""A relayed answer: its stream on any wire, and the watch for a client that goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import Message

from api import ndjson, sse
from api.framing import Framing
from api.relay import Departure, Stream
from api.schemas.ask import Heard
from shared.errors import EngineFailed
from shared.events import Finished, Tokens


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


class Speaker:
    """A source that says some words, falls silent where there is none, and then ends, or fails."""

    def __init__(self, *words: str | None, error: BaseException | None = None) -> None:
        self._words = list(words)
        self._error = error
        self.is_over = False

    async def next(self, timeout_s: float) -> Heard | None:
        if not self._words:
            if self._error:
                raise self._error
            self.is_over = True
            return Heard(0, 9, Finished(status="succeeded"))
        word = self._words.pop(0)
        if word is None:
            await asyncio.sleep(timeout_s)
            return None
        return Heard(0, 1, Tokens(ids=(1,), text=word))


class Words:
    """Says each word as it is."""

    def __init__(self, framing: Framing) -> None:
        self.framing = framing

    def say(self, heard: Heard) -> bytes:
        return heard.event.text.encode() if isinstance(heard.event, Tokens) else b""

    def end(self) -> bytes:
        return b"."

    def failed(self, error: Exception) -> bytes:
        return f"!{type(error).__name__}".encode()

    def body(self, endings: Sequence[Finished]) -> Any:
        raise AssertionError("only streamed")


async def sent(framing: Framing, source: Speaker) -> tuple[dict[bytes, bytes], bytes]:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    await Stream(Words(framing), {"X-Job-Id": "job"}, keep_alive_s=0.01).run(source, send)
    head, *rest = messages
    assert not rest[-1]["more_body"]
    return dict(head["headers"]), b"".join(message["body"] for message in rest)


LINES = Framing(ndjson.HEADERS, lambda: b"{}\n")


async def test_a_stream_is_of_the_wire_that_its_answer_is_for() -> None:
    for framing, kind, silence in (
        (LINES, b"application/x-ndjson", b"{}\n"),
        (sse.FRAMING, b"text/event-stream; charset=utf-8", sse.KEEP_ALIVE),
    ):
        headers, body = await sent(framing, Speaker("a", None, "b"))
        assert (headers[b"content-type"], headers[b"x-job-id"]) == (kind, b"job")
        assert body == b"a" + silence + b"b."


@pytest.mark.parametrize("framing", [LINES, sse.FRAMING])
@pytest.mark.parametrize(
    ("error", "end"),
    [
        (EngineFailed("no"), b"!EngineFailed"),
        (KeyError("a bug"), b"!KeyError"),
        (asyncio.CancelledError(), b"!NotReady"),
    ],
)
async def test_a_stream_that_cannot_go_on_says_so_on_any_wire(
    framing: Framing, error: BaseException, end: bytes
) -> None:
    _, body = await sent(framing, Speaker("a", error=error))
    assert body == b"a" + end
