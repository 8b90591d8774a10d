"""What clients send that is no request, or slowly, or never; and what they do not read.

The application behind the connections is a few lines: nothing here needs a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from api.cors import Cors
from api.port import connection, exchange
from api.port.connection import MAX_AHEAD, MAX_FIELDS, MAX_HEAD, MAX_URL, Connection
from tests.api.raw import Answer, connected

HURRIED_S = 0.2
"""What is waited for a client where that is what a test is about."""
PIECE = b"x" * 100_000


@dataclass
class Listening:
    """A server of nothing but connections, and an application that tells what it was asked.

    `/echo` answers with the body, `/hold` when `go` is set, `/pour` with pieces without an end, `/part` with a piece
    before `go` and one behind it; whatever else answers with the method, the path, the query and the headers.
    """

    url: str = ""
    state: ServerState = field(default_factory=ServerState)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)
    n_poured: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client was seen to be gone."""

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        match scope["path"]:
            case "/echo":
                await self._echo(receive, send)
            case "/hold":
                await self._hold(receive, send)
            case "/pour":
                await self._pour(send)
            case "/part":
                await start(send)
                await say(send, b"first", more=True)
                await self.go.wait()
                await say(send, b"last")
            case _:
                headers = sorted((name.decode(), value.decode()) for name, value in scope["headers"])
                told = [scope["method"], scope["path"], scope["query_string"].decode(), headers]
                await answer(send, json.dumps(told).encode())

    async def _echo(self, receive: Receive, send: Send) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                await answer(send, body)
                return
        self.left.set()

    async def _hold(self, receive: Receive, send: Send) -> None:
        await receive()
        going = asyncio.create_task(self.go.wait())
        leaving = asyncio.create_task(receive())  # type: ignore[arg-type]
        await asyncio.wait((going, leaving), return_when=asyncio.FIRST_COMPLETED)
        going.cancel()
        if leaving.done():
            self.left.set()
        leaving.cancel()
        await answer(send, b"held")

    async def _pour(self, send: Send) -> None:
        await start(send)
        try:
            while self.state.connections:
                await say(send, PIECE, more=True)
                self.n_poured += 1
                await asyncio.sleep(0)
        finally:
            self.left.set()


async def start(send: Send, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(headers)})


async def say(send: Send, body: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def answer(send: Send, body: bytes) -> None:
    await start(send, (b"content-length", b"%d" % len(body)))
    await say(send, body)


@contextlib.asynccontextmanager
async def listen(*, timeout_s: float = 30, max_connections: int = 50) -> AsyncIterator[Listening]:
    there = Listening()
    config = uvicorn.Config(there.app, log_config=None, ws="none", interface="asgi3", proxy_headers=False)
    config.load()
    there.state.default_headers = [(b"server", b"slotstream")]
    cors, loop = Cors(("*",)), asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(
            config, there.state, {}, loop, timeout_s=timeout_s, max_connections=max_connections, cors=cors
        ),
        "127.0.0.1",
        0,
    )
    there.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield there
    finally:
        server.close()
        for each in list(there.state.connections):
            each.shutdown()
        there.go.set()
        await asyncio.gather(*there.state.tasks)


@pytest.fixture
async def there() -> AsyncIterator[Listening]:
    async with listen() as listening:
        yield listening


@pytest.fixture
async def hurried() -> AsyncIterator[Listening]:
    async with listen(timeout_s=HURRIED_S) as listening:
        yield listening


async def only_answer(there: Listening, *data: bytes) -> Answer:
    """The answer to what is sent, behind which the server closes."""
    async with connected(there.url) as raw:
        for piece in data:
            raw.send(piece)
        only = await raw.answer()
        assert await raw.rest() == b""
    return only


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def block(seconds: float) -> None:
    """The whole process stands still."""
    time.sleep(seconds)


@contextlib.contextmanager
def narrow_client(there: Listening) -> Iterator[socket.socket]:
    """One for which the system keeps next to nothing."""
    url = httpx.URL(there.url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((url.host, url.port or 0))
        yield client


MALFORMED = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (b"nonsense\r\n\r\n", 501),
    (b"get / HTTP/1.1\r\n\r\n", 501),
    (b"BREW /pot HTTP/1.1\r\n\r\n", 501),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    (b"GET / HTTP/9.9\r\n\r\n", 400),
    (b"GET /a b HTTP/1.1\r\n\r\n", 400),
    (b"GET slots HTTP/1.1\r\n\r\n", 400),
    (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
    (b"GET http:///x HTTP/1.1\r\n\r\n", 400),
    (b"CONNECT a:80 HTTP/1.1\r\n\r\n", 405),
    (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nA : b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nA: b\x00c\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nX-Api-Key: k\nB: c\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: -3\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nabc", 400),
    (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\nabc", 400),
    (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: zip\r\n\r\n", 400),
    (b"GET /" + b"a" * MAX_URL + b" HTTP/1.1\r\n\r\n", 414),
    (b"GET /" + b"a" * 10 * MAX_URL, 414),
    (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_FIELDS + 1) + b"\r\n", 431),
    (b"GET / HTTP/1.1\r\nA: " + b"b" * MAX_HEAD + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\nA: " + b"b" * 10 * MAX_HEAD, 431),
    (b"GET / HTTP/1.1\r\n" + b"a" * 10 * MAX_HEAD, 431),
    (b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 10 * MAX_HEAD, 431),
    (b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " + b"x" * 10 * MAX_HEAD, 431),
]


@pytest.mark.parametrize(("data", "status"), MALFORMED, ids=[repr(data[:60]) for data, _ in MALFORMED])
async def test_what_is_no_request_is_refused_as_an_error_object(
    there: Listening, caplog: pytest.LogCaptureFixture, data: bytes, status: int
) -> None:
    for pieces in ([data], [data[:7], data[7:]]):
        refusal = await only_answer(there, *pieces)
        assert (refusal.status, refusal.error["code"]) == (status, status)
        assert refusal.headers["content-type"] == "application/json; charset=utf-8"
        assert refusal.headers["connection"] == "close"
        assert refusal.headers["server"] == "slotstream"
        assert refusal.headers["x-request-id"].startswith("req_")
    assert "/" not in there.asked
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_refusal_is_in_the_words_of_the_paths_family_and_for_the_page_that_asked(there: Listening) -> None:
    refusal = await only_answer(
        there, b"POST /v1/completions HTTP/1.1\r\nOrigin: http://page\r\nA: " + b"b" * MAX_HEAD + b"\r\n\r\n"
    )
    assert "param" in refusal.error
    assert refusal.headers["access-control-allow-origin"] == "http://page"


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", ""),
        (b"//slots", "//slots", ""),
        (b"/v1/../slots?a=1", "/v1/../slots", "a=1"),
        (b"/%68ealth", "/health", ""),
        (b"/a%2Fb%00%ff", "/a/b\x00\ufffd", ""),
        (b"http://elsewhere/slots?x", "/slots", "x"),
        (b"http://elsewhere", "/", ""),
        (b"http://elsewhere?x", "/", "x"),
        (b"*", "*", ""),
    ],
)
async def test_what_is_asked_for_is_a_path_however_it_is_written(
    there: Listening, target: bytes, path: str, query: str
) -> None:
    async with connected(there.url) as raw:
        raw.send(b"OPTIONS " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert json.loads((await raw.answer()).content) == ["OPTIONS", path, query, [["host", "x"]]]


async def test_one_connection_carries_one_request_after_another(there: Listening) -> None:
    async with connected(there.url) as raw:
        for body in (b"a", b"", b"c" * 300_000):
            raw.send(b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert (await raw.answer()).content == body
        raw.send(b"\r\n\r\nPOST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n")
        raw.send(b"2\r\nbc\r\n0\r\n\r\n")
        assert (await raw.answer()).content == b"abc"


async def test_requests_sent_ahead_are_answered_in_their_order(there: Listening) -> None:
    async with connected(there.url) as raw:
        raw.send(b"GET /hold HTTP/1.1\r\n\r\nPOST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\nab")
        raw.send(b"GET /2 HTTP/1.1\r\n\r\n")
        there.go.set()
        assert [(await raw.answer()).content[:4] for _ in range(3)] == [b"held", b"ab", b'["GE']
    assert there.asked == ["/hold", "/echo", "/2"]


async def test_too_many_requests_sent_ahead_are_refused_behind_the_others(there: Listening) -> None:
    async with connected(there.url) as raw:
        raw.send(b"GET /hold HTTP/1.1\r\n\r\n" + b"GET /2 HTTP/1.1\r\n\r\n" * 5000)
        await until(lambda: len(there.asked) == 1)
        there.go.set()
        statuses = [(await raw.answer()).status for _ in range(MAX_AHEAD + 1)]
        assert statuses == [200] * MAX_AHEAD + [429]
        assert await raw.rest() == b""


async def test_nonsense_behind_a_request_does_not_break_into_its_answer(there: Listening) -> None:
    async with connected(there.url) as raw:
        raw.send(b"GET /part HTTP/1.1\r\n\r\n")
        await raw.reader.readuntil(b"first\r\n")
        raw.send(b"nonsense\r\n\r\n")
        await asyncio.sleep(0.05)  # whatever it does to the answer, it does at once
        there.go.set()
        assert await raw.reader.readuntil(b"0\r\n\r\n") == b"4\r\nlast\r\n0\r\n\r\n"
        assert (await raw.answer()).status == 501
        assert await raw.rest() == b""


async def test_a_trailer_is_no_header(there: Listening) -> None:
    async with connected(there.url) as raw:
        raw.send(b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Api-Key: k\r\n\r\n")
        assert b"api-key" not in (await raw.answer()).content


async def test_a_wish_for_another_protocol_is_passed_over(there: Listening) -> None:
    """Java's client has one in each request."""
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    async with connected(there.url) as raw:
        for _ in range(2):
            raw.send(b"GET /1 HTTP/1.1\r\n" + wish + b"\r\n")
            raw.send(b"POST /echo HTTP/1.1\r\n" + wish + b"Content-Length: 2\r\n\r\nab" + b"GET /2 HTTP/1.1\r\n\r\n")
            assert [(await raw.answer()).content[:4] for _ in range(3)] == [b'["GE', b"ab", b'["GE']
            raw.send(b"POST /echo HTTP/1.1\r\n" + wish + b"Transfer-Encoding: chunked\r\n\r\n2\r\ncd\r\n")
            raw.send(b"0\r\n\r\n")
            assert (await raw.answer()).content == b"cd"


async def test_an_old_client_gets_a_stream_without_chunks(there: Listening) -> None:
    there.go.set()
    async with connected(there.url) as raw:
        raw.send(b"GET /part HTTP/1.0\r\n\r\n")
        told = await raw.answer()
        assert (told.content, told.headers.get("transfer-encoding")) == (b"firstlast", None)


async def test_an_old_client_gets_no_go_ahead(there: Listening) -> None:
    """It would take that for its answer."""
    async with connected(there.url) as raw:
        raw.send(b"POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab")
        assert (await raw.answer()).content == b"ab"


async def test_head_gets_no_body(there: Listening) -> None:
    there.go.set()
    async with connected(there.url) as raw:
        raw.send(b"HEAD /part HTTP/1.1\r\n\r\nHEAD /x HTTP/1.1\r\nConnection: close\r\n\r\n")
        said = await raw.rest()
    assert said.count(b"HTTP/1.1 200") == 2 and b"first" not in said and b"[" not in said


async def test_whoever_waits_for_a_go_ahead_gets_it(there: Listening) -> None:
    async with connected(there.url) as raw:
        raw.send(b"POST /echo HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n")
        assert await raw.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.send(b"ab")
        assert (await raw.answer()).content == b"ab"
        raw.send(b"POST /x HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await raw.answer()).headers["connection"] == "close", "it was not asked for its body"


async def test_whoever_is_answered_while_still_sending_sees_the_answer(there: Listening) -> None:
    async with connected(there.url) as raw:
        raw.send(b"POST /x HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n" + PIECE)
        told = await raw.answer()
        assert (told.status, told.headers["connection"]) == (200, "close")
        for _ in range(20):
            raw.send(PIECE)
        assert await raw.rest() == b""


async def test_what_was_left_unread_keeps_neither_the_next_request_nor_the_clients_end_unseen(
    there: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "HIGH_WATER", 10)
    async with connected(there.url) as raw:
        for _ in range(2):
            raw.send(b"POST /x HTTP/1.1\r\nContent-Length: 100\r\n\r\n" + PIECE[:100])
            assert (await raw.answer()).headers.get("connection") is None
    await until(lambda: not there.state.connections)


async def test_the_end_of_an_early_answer_is_not_lost_to_a_client_that_sends_on(there: Listening) -> None:
    async with connected(there.url) as raw:
        raw.send(b"POST /part HTTP/1.1\r\nContent-Length: 3\r\n\r\nab")
        await raw.reader.readuntil(b"first\r\n")
        raw.send(b"c")
        await asyncio.sleep(0.05)  # that it has come is nowhere to be seen
        there.go.set()
        raw.send(20 * PIECE)
        assert (await raw.rest()).endswith(b"4\r\nlast\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "part"),
    [(b"G", "head"), (b"\r\n", "head"), (b"GET / HTTP/1.1\r\nA: b", "head")]
    + [(b"POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\n" + sent, "body") for sent in (b"", b"abc")],
)
async def test_a_request_that_does_not_come_on_is_given_up(hurried: Listening, data: bytes, part: str) -> None:
    refusal = await only_answer(hurried, data)
    assert (refusal.status, refusal.error["type"]) == (408, "timeout_error")
    assert part in refusal.error["message"]
    assert not hurried.state.tasks


async def test_a_trickle_does_not_keep_a_request_alive_but_a_stream_does(
    hurried: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send_slowly(n_bytes: int) -> Answer:
        async with connected(hurried.url) as raw:
            raw.send(b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (10 * n_bytes))
            for _ in range(10):
                raw.send(b"x" * n_bytes)
                await asyncio.sleep(HURRIED_S / 4)
            return await raw.answer()

    assert (await send_slowly(1)).status == 408
    assert (await send_slowly(100)).content == b"x" * 1000


async def test_a_connection_without_a_request_is_closed_without_a_word(
    there: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "IDLE_S", 0.05)
    async with connected(there.url) as raw:
        assert await raw.rest() == b""
    async with connected(there.url) as raw:
        raw.send(b"GET /x HTTP/1.1\r\n\r\n")
        assert (await raw.answer()).status == 200
        assert await raw.rest() == b""


async def test_a_standstill_of_our_own_is_held_against_no_client(hurried: Listening) -> None:
    async with connected(hurried.url) as raw:
        raw.send(b"POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\n")
        await until(lambda: len(hurried.asked) == 1)
        raw.send(b"ab")
        block(HURRIED_S + 2 * connection.LATE_S)
        assert (await raw.answer()).status == 200


async def test_a_reader_that_takes_nothing_is_let_go_and_costs_little_until_then(hurried: Listening) -> None:
    with narrow_client(hurried) as reader:
        reader.sendall(b"GET /pour HTTP/1.1\r\n\r\n")
        await hurried.left.wait()
        assert not hurried.state.connections
        assert hurried.n_poured * len(PIECE) < 8_000_000, "what the system buffers, and one piece"


async def test_a_reader_that_is_slow_is_not_let_go(hurried: Listening) -> None:
    receive = asyncio.get_running_loop().sock_recv
    with narrow_client(hurried) as reader:
        reader.sendall(b"GET /pour HTTP/1.1\r\n\r\n")
        reader.setblocking(False)
        for _ in range(10):
            for _ in range(20):
                assert await receive(reader, 4096)
            await asyncio.sleep(HURRIED_S / 4)
        assert not hurried.left.is_set()


async def test_the_end_of_an_answer_that_nobody_takes_is_not_waited_for(hurried: Listening) -> None:
    with narrow_client(hurried) as reader:
        reader.setblocking(False)
        body = b"x" * 16_000_000
        head = b"POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        await asyncio.get_running_loop().sock_sendall(reader, head + body)
        await until(lambda: not hurried.state.connections)


@pytest.mark.parametrize("is_half", [False, True])
async def test_a_client_that_goes_or_closes_its_side_is_gone(there: Listening, is_half: bool) -> None:
    async with connected(there.url) as raw:
        raw.send(b"GET /hold HTTP/1.1\r\n\r\n")
        await until(lambda: len(there.asked) == 1)
        if is_half:
            raw.writer.write_eof()
            assert await raw.rest() == b""
    await there.left.wait()
    await until(lambda: not there.state.tasks and not there.state.connections)


async def test_connections_beyond_the_limit_are_told_to_come_again() -> None:
    async with listen(max_connections=2) as there, contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(connected(there.url))
        refusal = await only_answer(there, b"GET /x HTTP/1.1\r\n\r\n")
        assert (refusal.status, refusal.error["type"]) == (503, "unavailable_error")
        assert refusal.headers["retry-after"] == "1"
        await stack.aclose()
        await until(lambda: not there.state.connections)
        async with connected(there.url) as raw:
            raw.send(b"GET /x HTTP/1.1\r\n\r\n")
            assert (await raw.answer()).status == 200


async def test_a_stop_lets_answers_end_and_closes_what_waits(there: Listening) -> None:
    async with connected(there.url) as idle, connected(there.url) as raw:
        raw.send(b"GET /hold HTTP/1.1\r\n\r\n")
        await until(lambda: len(there.asked) == 1 and len(there.state.connections) == 2)
        for each in list(there.state.connections):
            each.shutdown()
        assert await idle.rest() == b""
        there.go.set()
        told = await raw.answer()
        assert (told.content, told.headers["connection"]) == (b"held", "close")
        assert await raw.rest() == b""
