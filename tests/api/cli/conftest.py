from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from api.cli import main

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def environment(**more: str) -> dict[str, str]:
    """This process's variables, without settings of ours that a developer may have set."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLOTSTREAM_")}
    return kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"} | more


@dataclass
class JobsServer:
    """The scripted jobs API, seen from a test."""

    url: str

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            content: dict[str, Any] = json.loads(answer.read())
            return content

    def script(self, *, refuse: int, status: int) -> None:
        content = json.dumps({"refuse": refuse, "with": status}).encode()
        urllib.request.urlopen(self.url + "/script", data=content, timeout=30).close()


@pytest.fixture
def jobs_server() -> Iterator[JobsServer]:
    with subprocess.Popen([sys.executable, str(HERE / "jobs_server.py")], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield JobsServer(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.terminate()


@dataclass
class BatchServer:
    """Scripted files and batches, seen from a test."""

    url: str

    @property
    def open_ai(self) -> str:
        """Where it has the manners of OpenAI's."""
        return f"{self.url}/openai/v1"

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            content: dict[str, Any] = json.loads(answer.read())
            return content

    def script(self, **order: Any) -> None:
        urllib.request.urlopen(self.url + "/script", data=json.dumps(order).encode(), timeout=30).close()

    def refuse(self, on: str, n: int, status: int) -> None:
        self.script(**{"on": on, "refuse": n, "with": status})


@pytest.fixture(scope="session")
def batch_servers() -> Iterator[str]:
    command = [sys.executable, str(HERE / "batch_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


@pytest.fixture
def batch_server(batch_servers: str) -> BatchServer:
    return BatchServer(f"{batch_servers}/{secrets.token_hex(4)}")


SERVED = multiprocessing.get_context("forkserver")
SERVED.set_forkserver_preload(["api.cli.run"])


class Running(NamedTuple):
    process: ForkServerProcess
    lines: IO[str]
    """What it says on stderr."""

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait(self) -> int:
        self.process.join(timeout=30)
        assert self.process.exitcode is not None, "it goes on"
        return self.process.exitcode


def _run_apart(folder: Path, arguments: tuple[str, ...], said: Connection, variables: dict[str, str]) -> None:
    """The command in a process of its own. That is forked from one which has imported it all: starting from nothing
    takes longer than most runs."""
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    os.dup2(said.fileno(), 2)
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - as long as the process
    sys.exit(main(["run", *arguments]))


@dataclass
class RunCommand:
    """`slotstream run` on files in a folder, with a state folder of its own."""

    folder: Path

    @property
    def source(self) -> Path:
        return self.folder / "in.jsonl"

    @property
    def output(self) -> Path:
        return self.folder / "out.jsonl"

    @property
    def part(self) -> Path:
        return self.folder / "out.jsonl.part"

    def write(self, *bodies: dict[str, Any]) -> None:
        lines = [
            {"custom_id": f"line-{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            for n, body in enumerate(bodies)
        ]
        self.source.write_text("".join(json.dumps(line) + "\n" for line in lines))

    @contextlib.contextmanager
    def start(self, *arguments: str) -> Iterator[Running]:
        """As a process, which is killed at the end of the block."""
        variables = environment(XDG_STATE_HOME=str(self.folder / "state"))
        ours, its = SERVED.Pipe(duplex=False)
        process = SERVED.Process(target=_run_apart, args=(self.folder, arguments, its, variables))
        process.start()
        its.close()
        try:
            with ours, os.fdopen(os.dup(ours.fileno())) as lines:
                yield Running(process, lines)
        finally:
            process.kill()
            process.join()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """To its end, in this process: starting another takes longer than most runs."""
        out, err = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.setenv("XDG_STATE_HOME", str(self.folder / "state"))
            for name in [name for name in os.environ if name.startswith("SLOTSTREAM_")]:
                patch.delenv(name)
            try:
                code = main(["run", *arguments])
            except SystemExit as leaving:
                code = leaving.code if isinstance(leaving.code, int) else 1
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def results(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]


@pytest.fixture
def bulk(tmp_path: Path) -> RunCommand:
    return RunCommand(tmp_path)
