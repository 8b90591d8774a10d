"""Real processes of all roles on loopback: an embedded server, an API, and workers as a test asks for them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from shared.settings import BusSettings
from tests.ports import free_port

PATIENCE_S = 40.0

LONG = 600
"""Tokens of an answer that is still being made when a test looks."""


class Role:
    """One process. Its log is shown when a test fails, since pytest shows what is printed."""

    def __init__(
        self, arguments: Sequence[str], environment: dict[str, str], log: Path, *, cwd: Path | None = None
    ) -> None:
        """`arguments` are Python's."""
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **environment},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def wait(self) -> int:
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        print(f"--- {self._log.name}\n{self.log}")


class Stack:
    """The roles around one namespace of one server."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self._folder = folder
        self.environment = {
            "SLOTSTREAM_REDIS_URL": redis_url,
            "SLOTSTREAM_NAMESPACE": f"t{secrets.token_hex(6)}",
            "SLOTSTREAM_STORE_URL": str(folder / "store"),
            "SLOTSTREAM_LEASE_S": "2",
            "SLOTSTREAM_GRACE_S": "0.2",
            "SLOTSTREAM_LOG_LEVEL": "debug",
        }
        self.roles: list[Role] = []
        self.http = httpx.AsyncClient(timeout=PATIENCE_S)

    @property
    def bus_settings(self) -> BusSettings:
        return BusSettings(
            redis_url=SecretStr(self.environment["SLOTSTREAM_REDIS_URL"]),
            namespace=self.environment["SLOTSTREAM_NAMESPACE"],
        )

    def start(
        self, module: str, *, program: str | None = None, python_path: Path | None = None, **settings: Any
    ) -> Role:
        """`program`: what to run in place of the module; `python_path`: where another version of all modules is."""
        variables = {f"SLOTSTREAM_{name.upper()}": str(value) for name, value in settings.items()}
        log = self._folder / f"{len(self.roles)}-{module}.log"
        arguments = ["-m", module] if program is None else ["-c", program]
        if python_path:
            variables["PYTHONPATH"] = str(python_path)
        role = Role(arguments, {**self.environment, **variables}, log, cwd=python_path)
        self.roles.append(role)
        return role

    async def start_api(self, port: int | None = None, **settings: Any) -> Role:
        port = port or free_port()
        role = self.start("api", port=port, **settings)
        self.http.base_url = httpx.URL(f"http://127.0.0.1:{port}")
        await self.until(self._answers, role)
        return role

    async def start_worker(self, model: Path, **settings: Any) -> Role:
        """A worker that is ready, on one thread unless told otherwise."""
        before = await self.workers()
        role = self.start("worker", model=model, **{"alias": "tiny", "threads": 1, **settings})

        async def is_there() -> bool:
            return bool(await self.workers() - before)

        await self.until(is_there, role)
        return role

    async def close(self) -> None:
        await self.http.aclose()
        for role in self.roles:
            role.end()

    async def workers(self) -> set[str]:
        """Ids of the workers that are ready."""
        slots = (await self.http.get("/slots")).json()
        return {slot["worker"] for slot in slots} if isinstance(slots, list) else set()

    async def busy_slots(self) -> int:
        return sum(slot["is_processing"] for slot in (await self.http.get("/slots")).json())

    async def is_idle(self) -> bool:
        return await self.busy_slots() == 0

    async def until(self, condition: Callable[[], Any], role: Role | None = None) -> None:
        """Wait for `condition`, as long as `role` lives."""
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():
                assert role is None or role.process.poll() is None, "the process ended"
                await asyncio.sleep(0.05)

    async def _answers(self) -> bool:
        try:
            return (await self.http.get("/live")).status_code == 200
        except httpx.TransportError:
            return False


def ask(prompt: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "n_predict": 12, "seed": 5, "ignore_eos": True, **more}


async def make_job(stack: Stack, body: dict[str, Any], **more: Any) -> str:
    response = await stack.http.post("/v1/jobs", json={"endpoint": "/completion", "body": body, **more})
    assert response.status_code == 202, response.text
    job_id: str = response.json()["id"]
    return job_id


async def follow(
    stack: Stack, job_id: str, after: int = 0, heard: list[tuple[int, str]] | None = None
) -> tuple[list[tuple[int, str]], dict[str, Any]]:
    """(number, text) of each token of a job, and the job at its end. `heard` gets the tokens as they come."""
    tokens = [] if heard is None else heard
    path = f"/v1/jobs/{job_id}/events?starting_after={after}"
    async with stack.http.stream("GET", path) as response:
        number, name = 0, ""
        async for line in response.aiter_lines():
            field, _, value = line.partition(": ")
            if field == "id":
                number = int(value)
            elif field == "event":
                name = value
            elif field == "data" and name == "token":
                tokens.append((number, json.loads(value)["text"]))
            elif field == "data":
                return tokens, json.loads(value)
    raise AssertionError("the stream ended without its end")


async def generating(stack: Stack) -> list[dict[str, Any]]:
    """The slots that have said something already."""
    slots = (await stack.http.get("/slots")).json()
    return [slot for slot in slots if slot["is_processing"] and slot["next_token"][0]["n_decoded"] > 3]


def check_gapless(tokens: list[tuple[int, str]]) -> None:
    assert [number for number, _ in tokens] == list(range(1, len(tokens) + 1))
