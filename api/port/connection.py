"""One client's connection: bytes in, exchanges out, and nothing that a client sends or withholds does harm.

It stands where uvicorn's own protocol would, which answers bad requests in plain text, and waits for ever on a client
that stops sending or reading. Knows no route and no job. What it holds of a client is bounded: a head, a piece of a
body, and what a transport buffers before it says stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
import urllib.parse
from enum import Enum
from typing import Any

import httptools
from starlette.exceptions import HTTPException
from starlette.types import Scope
from uvicorn import Config
from uvicorn.server import ServerState

from api.cors import Cors
from api.port.exchange import Exchange, header_line, status_line
from api.problems import new_request_id, response_to
from shared.errors import NotReady, NotSupported

MAX_URL = 8 * 1024
MAX_HEAD = 32 * 1024
"""Bytes of a request's line and headers; as many may come between two pieces of a body: sizes of chunks, trailers."""
MAX_FIELDS = 100
"""Headers of a request. llama-server, too, takes so many and no more."""
MAX_AHEAD = 16
"""Requests that a client may send before the first of them is answered."""

PATIENCE_S = 20.0
LEAST_RATE = 500.0
"""Bytes a second. A head may take PATIENCE_S, a body as long and a second more for each so many bytes that came: the
bounds of Apache's mod_reqtimeout, which real clients are used to."""
IDLE_S = 75.0
"""How long a connection waits for its next request: longer than clients keep theirs, so that they let go first."""
LINGER_S = 2.0
"""How long what a refused client still sends is read and dropped: closed at once, it might never see why."""
LATE_S = 0.5
"""A timer that goes off so much later than it should tells that this process stood still, and not its client."""

ASGI = {"version": "3.0", "spec_version": "2.3"}


class Phase(Enum):
    """What is expected of the client next."""

    IDLE = "idle"  # the first byte of a request
    HEAD = "head"  # the rest of its line and headers
    BODY = "body"  # the rest of its body
    ANSWERED = "answered"  # nothing: it has asked, and waits for us
    LEAVING = "leaving"  # nothing any more: what comes is dropped


class Connection(asyncio.Protocol):
    """Invariant: `_exchanges` are those without a whole answer, in the order in which they were asked; the first is at
    work, and in the phase BODY the last is being received."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        timeout_s: float,
        max_connections: int,
        cors: Cors,
        prefix: str = "",
    ) -> None:
        """The first four are uvicorn's. `timeout_s`: for how long a client may send or take nothing where it should.
        `prefix`: what all paths begin with."""
        self._app = config.loaded_app
        self._state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._patience_s = min(PATIENCE_S, timeout_s)
        self._max_connections = max_connections
        self._cors = cors
        self._prefix = prefix
        self._exchanges: list[Exchange] = []  # of one, mostly: an empty deque takes ten times the room
        self._refusal: Exception | None = None
        """What is answered to the request behind those that are still at work, as the last on this connection."""
        self._is_reading = True
        self._writable: asyncio.Future[None] | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._n_unmarked = 0
        """Bytes that came since the last one of which it is known what it belongs to."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._url = b""
        self._is_declining = False

    # asyncio's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._client, self._server = _address(transport, "peername"), _address(transport, "sockname")
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self._parser = self._new_parser()
        self._state.connections.add(self)  # type: ignore[arg-type]
        self._enter(Phase.IDLE)
        if len(self._state.connections) > self._max_connections:
            self._refuse(NotReady("There are too many connections", retry_after_s=1))

    def connection_lost(self, error: Exception | None) -> None:
        self._state.connections.discard(self)
        self._phase = Phase.LEAVING
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        for exchange in self._exchanges:
            exchange.abandon()
        self.resume_writing()

    def eof_received(self) -> bool:
        """A client that closes its side is taken for gone, as by llama-server: one that is gone looks just the same,
        and its slot is wanted."""
        return False

    def data_received(self, data: bytes) -> None:
        if self._phase is Phase.IDLE:
            self._enter(Phase.HEAD)
        try:
            while data and self._phase is not Phase.LEAVING and self._refusal is None:
                self._n_unmarked += len(data)
                data = self._parse(data)
                if self._n_unmarked > MAX_HEAD:
                    self._refuse(_too_long_a_head())
                    return
        except httptools.HttpParserError as error:
            self._refuse(_fault_of(error, data))

    def pause_writing(self) -> None:
        """The client takes less than is said: whoever says it waits, but not for ever."""
        if self._writable is None:
            self._writable = self._loop.create_future()
        self._watch_writes()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        if self._write_timer is not None and not self._transport.is_closing():
            self._write_timer.cancel()

    def shutdown(self) -> None:
        """uvicorn's word that the server stops: what is at work goes on to its end."""
        if not self._exchanges:
            self._transport.close()
        for exchange in self._exchanges:
            exchange.keeps_alive = False

    # The parser's side. What is raised here comes out of `feed_data` as the context of an error of its own.

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Else it would refuse what stands behind a request that says it is the last, before that is answered.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _parse(self, data: bytes) -> bytes:
        """Returns what this parser left for the next one."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade()
            return data[upgrade.args[0] :]
        return b""

    def _decline_upgrade(self) -> None:
        """Stays with HTTP/1.1, as a server may that is asked for another protocol, which Java's client does each time.

        The parser takes all behind such a head for that protocol. So another one is told of the body alone.
        """
        self._parser = self._new_parser()
        if framing := self._framing():
            self._is_declining = True
            self._parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *map(header_line, framing), b"\r\n"]))
            self._is_declining = False

    def _framing(self) -> list[tuple[bytes, bytes]]:
        """The headers that say where the body ends."""
        return [header for header in self._headers if header[0] in (b"content-length", b"transfer-encoding")]

    def on_message_begin(self) -> None:
        if self._is_declining:
            return
        self._n_unmarked = 0
        self._headers, self._url = [], b""
        if len(self._exchanges) >= MAX_AHEAD:
            raise HTTPException(429, f"More than {MAX_AHEAD} requests were sent ahead of their answers")
        self._enter(Phase.HEAD)

    def on_url(self, part: bytes) -> None:
        if self._is_declining:
            return
        self._url += part
        if len(self._url) > MAX_URL:
            raise HTTPException(414, f"The URL is longer than {MAX_URL} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is not Phase.HEAD:  # what declines an upgrade is in the phase BODY, too
            return  # a trailer: it is nobody's word on who asks, or what
        if len(self._headers) == MAX_FIELDS:
            raise HTTPException(431, f"The request has more than {MAX_FIELDS} headers")
        self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if self._is_declining:
            return
        if len(self._url) + sum(len(name) + len(value) for name, value in self._headers) > MAX_HEAD:
            raise _too_long_a_head()
        named = [name for name, _ in self._headers]
        version, method = self._parser.get_http_version(), self._parser.get_method().decode("ascii")
        if named.count(b"host") > 1:
            raise _invalid("Host is given twice")
        if version == "1.0" and b"transfer-encoding" in named:
            raise _invalid("HTTP/1.0 has no Transfer-Encoding")
        if method == "CONNECT":
            raise HTTPException(405, "This is no proxy")
        exchange = Exchange(
            self,
            self._scope(version, method),
            keeps_alive=version != "1.0" and self._parser.should_keep_alive(),
            expects_go_ahead=version != "1.0" and self._has(b"expect", b"100-continue"),
        )
        self._n_unmarked = 0
        self._exchanges.append(exchange)
        self._enter(Phase.BODY)
        if len(self._exchanges) == 1:
            self._start(exchange)

    def _has(self, name: bytes, value: bytes) -> bool:
        return any(name == each and value == given.lower() for each, given in self._headers)

    def on_body(self, piece: bytes) -> None:
        self._n_unmarked = 0
        self._n_body += len(piece)
        if self._phase is Phase.BODY and self._exchanges:
            self._exchanges[-1].feed(piece)

    def on_message_complete(self) -> None:
        self._n_unmarked = 0
        if self._parser.should_upgrade() and self._framing():
            return  # it is not: see `_decline_upgrade`
        if self._phase is Phase.BODY:
            self._exchanges[-1].complete()
            self._enter(Phase.ANSWERED)

    # The exchanges' side.

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return self._state.default_headers

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drain(self) -> None:
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def hold(self, is_full: bool) -> None:
        if is_full is self._is_reading and not self._transport.is_closing():
            self._is_reading = not is_full
            if is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def end(self, exchange: Exchange) -> None:
        if self._phase is Phase.LEAVING or self._transport.is_closing():
            return
        assert exchange is self._exchanges[0], "answers go out in the order of the questions"
        self._exchanges.pop(0)
        self._state.total_requests += 1
        self.hold(False)  # what it left unread is nobody's, and must not keep the next one, or the client's end, unseen
        if not exchange.is_answered or (not exchange.keeps_alive and not exchange.is_early):
            self._close()
        elif not exchange.keeps_alive:
            self._linger()
        elif self._exchanges:
            self._start(self._exchanges[0])
        elif self._refusal is not None:
            self._refuse(self._refusal)
        elif self._phase is Phase.ANSWERED:
            self._enter(Phase.IDLE)

    def _start(self, exchange: Exchange) -> None:
        task = self._loop.create_task(exchange.run(self._app))
        task.add_done_callback(self._state.tasks.discard)
        self._state.tasks.add(task)

    # How it ends.

    def _refuse(self, error: Exception) -> None:
        """The last answer on this connection, behind those that are at work."""
        if self._phase is Phase.BODY:
            failed = self._exchanges.pop()
            failed.abandon()
            if failed.has_started:
                self._close()  # its answer is out, or cut in two: there is no saying anything behind that
                return
        if self._exchanges:
            self._refusal = error
            self._enter(Phase.ANSWERED)
            return
        path = self._url.partition(b"?")[0].decode("latin-1").removeprefix(self._prefix)
        response = response_to(error, {"path": path})
        response.headers["X-Request-Id"] = new_request_id()
        response.headers["Connection"] = "close"
        self._cors.mark(response.headers, dict(self._headers).get(b"origin", b"").decode("latin-1"))
        head = [status_line(response.status_code), *map(header_line, [*self.default_headers, *response.raw_headers])]
        self._transport.write(b"".join([*head, b"\r\n", response.body]))
        self._linger()

    def _linger(self) -> None:
        """Reads and drops what the client still sends: of a connection closed at once it might never see the answer."""
        self._enter(Phase.LEAVING)
        self.hold(False)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        """Closes when all is written, if the client takes it."""
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._watch_writes()

    # How long it may take.

    def _enter(self, phase: Phase) -> None:
        self._phase, self._phase_since, self._n_body = phase, self._loop.time(), 0
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._deadline()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._look, deadline)

    def _deadline(self) -> float | None:
        match self._phase:
            case Phase.IDLE:
                return self._phase_since + IDLE_S
            case Phase.HEAD:
                return self._phase_since + self._patience_s
            case Phase.BODY:
                return self._phase_since + self._patience_s + self._n_body / LEAST_RATE
            case Phase.LEAVING:
                return self._phase_since + LINGER_S
            case Phase.ANSWERED:
                return None

    def _look(self, due_at: float) -> None:
        deadline = self._deadline()
        if deadline is not None and deadline > self._loop.time():
            self._arm()
        elif not self._is_reading or self._loop.time() - due_at > LATE_S:
            self._enter(self._phase)  # the delay is ours
        elif self._phase in (Phase.HEAD, Phase.BODY):
            self._refuse(HTTPException(408, f"The request's {self._phase.value} did not come in time"))
        else:
            self._close()

    def _watch_writes(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = self._loop.call_later(self._timeout_s, self._look_at_writes, self._n_unsent())

    def _look_at_writes(self, n_before: int) -> None:
        """Lets go of a client that took nothing of what there was to take."""
        if self._n_unsent() < n_before:
            self._watch_writes()
        else:
            self._transport.abort()

    def _n_unsent(self) -> int:
        """Bytes that the client has not taken. The system holds most: it has room for megabytes before it takes more
        from us, which a slow reader needs hours for."""
        in_system = bytearray(4)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, in_system)
        return self._transport.get_write_buffer_size() + int.from_bytes(in_system, sys.byteorder)

    def _scope(self, version: str, method: str) -> Scope:
        raw_path, query = _target(self._url)
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": ASGI,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "method": method,
            "root_path": "",
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
            "state": self._app_state.copy(),
        }


def _target(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of what was asked for: a path, a whole URL as proxies are sent, or `*`."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        raise _invalid("the URL cannot be read") from None
    return parsed.path or b"/", parsed.query or b""


def _fault_of(error: httptools.HttpParserError, data: bytes) -> Exception:
    """What the client did wrong. Our own callbacks' errors come as contexts of the parser's."""
    if isinstance(error.__context__, HTTPException):
        return error.__context__
    if data.startswith(b"\x16\x03"):
        return _invalid("this port speaks no TLS")
    if data.startswith(b"PRI * HTTP/2"):
        return HTTPException(505, "HTTP/2 is not spoken here")
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return NotSupported("There is no such method")
    return _invalid(str(error))


def _invalid(reason: str) -> HTTPException:
    return HTTPException(400, f"Invalid HTTP request: {reason}")


def _too_long_a_head() -> HTTPException:
    return HTTPException(431, f"The request's headers are longer than {MAX_HEAD} bytes")


def _address(transport: asyncio.Transport, name: str) -> tuple[str, int] | None:
    address = transport.get_extra_info(name)
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None
