"""compose.yaml, read and played on loopback: each service's own command as a local process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.bus.embedded import server_binary
from tests.ports import free_port

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def with_defaults(text: str) -> str:
    """`${NAME:-default}` as compose fills it in when nobody sets NAME."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


class Loopback:
    """Compose's network, folded onto this machine: its names and ports become free ports of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.redis_port = free_port()
        self.api_port = free_port()

    def command(self, name: str) -> list[str]:
        program, *arguments = [with_defaults(part) for part in SERVICES[name]["command"]]
        if program == "slotstream":
            return [sys.executable, "-P", "-m", "api.cli", *arguments]
        assert program == "redis-server"
        server = shutil.which("redis-server") or str(server_binary())
        return [server, *arguments, *("--port", str(self.redis_port), "--bind", "127.0.0.1", "--dir", str(self.folder))]

    def environment(self, name: str) -> dict[str, str]:
        given: dict[str, str] = SERVICES[name].get("environment", {})
        values = {key: with_defaults(value) for key, value in given.items()}
        if url := values.get("SLOTSTREAM_REDIS_URL"):
            assert url == "redis://redis:6379/0"
            values["SLOTSTREAM_REDIS_URL"] = f"redis://127.0.0.1:{self.redis_port}/0"
        if "SLOTSTREAM_PORT" in values:
            values |= {"SLOTSTREAM_PORT": str(self.api_port), "SLOTSTREAM_HOST": "127.0.0.1"}
        if "SLOTSTREAM_STORE_URL" in values:
            assert values["SLOTSTREAM_STORE_URL"] == "/var/lib/slotstream/files"
            values["SLOTSTREAM_STORE_URL"] = str(self.folder / "files")
        ours = {key: value for key, value in os.environ.items() if not key.startswith("SLOTSTREAM_")}
        return ours | {"PYTHONPATH": str(ROOT)} | values

    def start(self, name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                self.command(name), cwd=self.folder, env=self.environment(name), stdout=log, stderr=log
            )

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.api_port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=50) as answer:
            content: dict[str, Any] = json.loads(answer.read())
            return content


@pytest.fixture
def loopback(tmp_path: Path) -> Loopback:
    return Loopback(tmp_path)


@pytest.fixture
def services(loopback: Loopback) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Every service as a process, all started at once: each must bear it that another is not there yet."""
    with ExitStack() as stack:
        started = {}
        for name in SERVICES:
            started[name] = stack.enter_context(loopback.start(name))
            stack.callback(started[name].kill)
        yield started


def wait_until_healthy(loopback: Loopback, services: dict[str, subprocess.Popen[bytes]]) -> None:
    give_up = time.monotonic() + 45
    while True:
        try:
            loopback.ask("/health")
        except (OSError, urllib.error.HTTPError) as error:
            for name, process in services.items():
                said = (loopback.folder / f"{name}.log").read_text()
                assert process.poll() is None, f"{name} ended: {said}"
            assert time.monotonic() < give_up, error
            time.sleep(0.1)
        else:
            return


@pytest.mark.slow
def test_the_services_of_the_file_answer_a_request_and_stop_in_peace(
    loopback: Loopback, services: dict[str, subprocess.Popen[bytes]]
) -> None:
    wait_until_healthy(loopback, services)
    answer = loopback.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4})
    assert answer["usage"]["completion_tokens"] >= 1
    for name in ("worker", "api", "tasks"):
        services[name].send_signal(signal.SIGTERM)
    for name in ("worker", "api", "tasks"):
        assert services[name].wait(30) == 0, (loopback.folder / f"{name}.log").read_text()


def test_the_roles_are_those_of_the_design_and_the_worker_can_be_scaled() -> None:
    assert set(SERVICES) == {"redis", "api", "tasks", "worker"}
    assert not {"container_name", "ports", "hostname"} & set(SERVICES["worker"])


def test_redis_keeps_jobs_over_a_restart_and_throws_none_away() -> None:
    command = " ".join(SERVICES["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert any(volume.endswith(":/data") for volume in SERVICES["redis"]["volumes"])


def test_those_who_need_files_share_one_store_that_outlives_them_and_is_theirs() -> None:
    place = "/var/lib/slotstream/files"
    for name in ("api", "tasks", "worker"):
        assert with_defaults(SERVICES[name]["environment"]["SLOTSTREAM_STORE_URL"]) == place
        assert f"files:{place}" in SERVICES[name]["volumes"]
    assert "files" in COMPOSE["volumes"]
    assert re.search(rf"install --directory --owner=slotstream .* {place}", (ROOT / "Dockerfile").read_text())


@pytest.mark.parametrize("name", ["api", "tasks", "worker"])
def test_a_service_is_built_from_this_folder_and_waits_for_redis(name: str) -> None:
    service = SERVICES[name]
    assert (ROOT / service["build"] / "Dockerfile").is_file()
    assert service["depends_on"]["redis"]["condition"] == "service_healthy"
    assert "healthcheck" in SERVICES["redis"]


def test_what_the_image_copies_is_there_and_not_kept_out() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied
    assert copied <= kept
    assert all((ROOT / name).exists() for name in copied)
