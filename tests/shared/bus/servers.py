"""redis-server processes that know each other: replicas, sentinels, nodes, over TCP and TLS."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.conftest import REDIS_SERVER
from tests.ports import free_port

PATIENCE_S = 30.0


class Node:
    """One process on a port of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        binary: str | Path | None = REDIS_SERVER,
        password: str = "",
        is_sentinel: bool = False,
        **options: object,
    ) -> None:
        if binary is None:
            pytest.skip("no redis-server on this machine")
        self.port = free_port()
        is_tls = "tls_cert_file" in options
        self.folder = folder
        folder.mkdir()
        ports = {"port": 0, "tls-port": self.port} if is_tls else {"port": self.port}
        given = {"bind": "127.0.0.1", **ports, "dir": folder, "logfile": folder / "log"}
        given |= {} if is_sentinel else {"save": '""', "repl-diskless-sync-delay": 0}
        given |= {"requirepass": password} if password else {}
        if "cluster_enabled" in options:
            given["cluster-port"] = self.bus_port = free_port()  # the port + 10000 may be too high
        given |= {name.replace("_", "-"): value for name, value in options.items()}
        (folder / "conf").write_text("".join(f"{name} {value}\n" for name, value in given.items()))
        self._command = [binary, folder / "conf", *(["--sentinel"] if is_sentinel else [])]
        self._process: subprocess.Popen[bytes] | None = None
        secret = {"password": password} if password else {}
        secret |= {"ssl": True, "ssl_ca_certs": options["tls_ca_cert_file"]} if is_tls else {}
        self.client: Any = redis.Redis(port=self.port, socket_timeout=PATIENCE_S, **secret)

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until(self._answers)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        if self._process:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE_S)
            self._process = None

    def _answers(self) -> bool:
        assert self._process and self._process.poll() is None, (self.folder / "log").read_text()
        return bool(self.client.ping())


@contextmanager
def running(*nodes: Node) -> Iterator[None]:
    """All of them, until the end of the block."""
    try:
        for node in nodes:
            node.start()
        yield
    finally:
        for node in nodes:
            node.kill()
            node.client.close()


def until(look: Callable[[], object]) -> None:
    """Returns when `look` sees it. A node that changes its role closes its connections, and is asked again."""
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        with suppress(redis.ConnectionError):
            if look():
                return
        time.sleep(0.02)
    raise AssertionError("it does not come")


def until_replicated(primary: Node, replica: Node) -> None:
    """Returns when the replica has what the primary has now."""
    written = primary.client.info("replication")["master_repl_offset"]
    until(lambda: replica.client.info("replication").get("slave_repl_offset", -1) >= written)
