"""A server process that can be stopped, killed, started again and run short of what it needs. Its data outlive it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import redis

from shared.bus.embedded import server_binary

PATIENCE_S = 30.0


class Server:
    """On a unix socket in a folder of its own, with the durability of the embedded server: AOF, synced each second."""

    def __init__(self, folder: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.socket = folder / "s"
        self.url = f"unix://{self.socket}"
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(unix_socket_path=str(self.socket), socket_timeout=PATIENCE_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.client.close()

    def start(self, **options: object) -> None:
        """Returns when it answers, if only that it is still loading."""
        given = {
            "port": 0,
            "unixsocket": self.socket,
            "dir": self.folder,
            "logfile": self.folder / "log",
            "save": "",
            "appendonly": "yes",
            "maxmemory-policy": "noeviction",
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        self.socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [server_binary(), *(word for name, value in given.items() for word in (f"--{name}", str(value)))],
            env=self._environment,
            preexec_fn=_survive_a_full_disk,  # noqa: PLW1509 - it only sets a signal's disposition
            stdout=subprocess.DEVNULL,
        )
        try:
            self._until_it_answers(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def fill_disk(self) -> None:
        """Not one more byte can be written to its files."""
        assert self._process
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

    def free_disk(self) -> None:
        assert self._process
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, unlimited)

    @property
    def n_written(self) -> int:
        """Bytes in the newest part of its append-only file, to which each change is added."""
        return self._newest_part().stat().st_size

    def first_written(self, name: str) -> int:
        """Where in its append-only file a name stands first."""
        return self._newest_part().read_bytes().index(name.encode())

    def lose_tail(self, n_kept: int) -> None:
        """As a power cut does: what was written last never reached the disk. Only while it is down."""
        assert self._process is None
        os.truncate(self._newest_part(), n_kept)

    def _newest_part(self) -> Path:
        return max(self.folder.glob("appendonlydir/*.incr.aof"), key=lambda path: path.stat().st_mtime)

    def _end(self, number: signal.Signals) -> None:
        if self._process:
            self._process.send_signal(number)
            self._process.wait(PATIENCE_S)
            self._process = None

    def _until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_at:
            try:
                self.client.ping()
            except redis.BusyLoadingError:
                return
            except (redis.RedisError, OSError):
                assert process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.01)
            else:
                return
        raise AssertionError("the server does not answer")


def _survive_a_full_disk() -> None:
    """A write beyond RLIMIT_FSIZE then fails like one to a full disk, instead of ending the process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
