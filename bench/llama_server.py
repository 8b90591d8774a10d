"""llama.cpp's own server as a yardstick, started from a binary that somebody has built. Knows nothing of slotstream.

It must be of the commit that llama-cpp-python carries, else a ratio compares two versions of the same arithmetic. From
the unpacked source distribution of llama-cpp-python:

    cmake -S vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
    cmake --build build --target llama-server
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api.cli.stack import free_port
from worker.threads import NATIVE_ENVIRONMENT

START_S = 120.0


@contextmanager
def llama_server(binary: Path, model: Path, *arguments: str, log: Path) -> Iterator[str]:
    """The URL of a server that is ready. Its threads wait as a worker's do. RuntimeError when it ends instead."""
    port = free_port("127.0.0.1")
    command = [str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), *arguments]
    environment = {**os.environ, **NATIVE_ENVIRONMENT}
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            if not _becomes_ready(url, process):
                raise RuntimeError(f"llama-server is not ready; the end of what it says:\n{log.read_text()[-2000:]}")
            yield url
        finally:
            process.kill()


def version_of(binary: Path) -> str:
    """What it calls itself: `version: 9876 (0c1e570)`."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return next(line for line in (said.stdout + said.stderr).splitlines() if "version" in line).strip()


def _becomes_ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    return False
