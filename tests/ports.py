"""Ports for servers that must be told theirs before they listen."""

from __future__ import annotations

import itertools
import os
import socket

FIRST, OF_A_PROCESS = 20_000, 2_000
"""Below those that the kernel gives to connections and to whoever asks for any: between the look whether a port is free
and the server's start, another would get it. So each process that runs tests side by side has ports of its own."""

_numbers = itertools.count(7 * os.getpid())


def free_port() -> int:
    """That nobody listens on, and that was not given before."""
    place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 6
    for _ in range(OF_A_PROCESS):
        port = FIRST + place * OF_A_PROCESS + next(_numbers) % OF_A_PROCESS
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("there is no free port")
