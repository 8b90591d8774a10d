"""The process's HTTP server: uvicorn with connections of our own, and how it says that it is up and is told to stop.

Knows settings and sockets, and no route.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from api.cors import Cors
from api.port.connection import Connection
from shared.settings import ApiSettings

SHUTDOWN_S = 25
"""How long open streams may go on after SIGTERM; what is left then gets an error as its last event."""


def config_of(app: ASGIApp, settings: ApiSettings, tls: ssl.SSLContext | None, *, grace_s: int) -> uvicorn.Config:
    """uvicorn's settings for ours. `grace_s`: what open streams are left after a stop is asked for."""
    connection = functools.partial(
        Connection,
        timeout_s=settings.timeout,
        max_connections=settings.max_connections,
        cors=Cors(settings.cors_origins),
        prefix=settings.api_prefix,
    )
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=connection,  # type: ignore[arg-type]  # it is only called
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=[("Server", "slotstream")],
        timeout_graceful_shutdown=grace_s,
    )
    config.load()
    config.ssl = tls
    return config


class Server(uvicorn.Server):
    """uvicorn's, that says in one line where it can be reached and lets the process end with a code of its own."""

    def __init__(self, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(f"slotstream api: listening on {self._url}", flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn raises the signal again when all is done, and the process would die of it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
