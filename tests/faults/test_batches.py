"""A batch under which any process may die, with real processes. When is chosen by what Redis shows, never by luck.

All share one API on one server; each test starts the workers and the tasks that it ends.
"""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.faults.server import Server
from tests.faults.test_poison import MORTAL, POISON
from tests.models import tiny_model
from tests.stack import LONG, Role, Stack, ask, generating

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(240)]

PATIENCE_S = 100.0

WIDE = {"ctx_size": 16384, "parallel": 8}


class Place:
    """An API, a server, and what a test starts besides."""

    def __init__(self, stack: Stack, server: Server) -> None:
        self.stack, self.server = stack, server
        self.http = stack.http

    async def start_tasks(self, **settings: Any) -> Role:
        role = self.stack.start("api.tasks", **settings)
        await self.until(lambda: '"jobs are taken"' in role.log)
        return role

    async def start_worker(self) -> Role:
        return await self.stack.start_worker(tiny_model(), **WIDE)

    async def made(self, bodies: Sequence[dict[str, Any]], window: str = "1h") -> str:
        """A batch of completions whose custom ids are their places."""
        lines = [
            {"custom_id": f"{n}", "method": "POST", "url": "/completion", "body": body} for n, body in enumerate(bodies)
        ]
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        sent = await self.http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)})
        assert sent.status_code == 200, sent.text
        fields = {"input_file_id": sent.json()["id"], "endpoint": "/completion", "completion_window": window}
        made = await self.http.post("/v1/batches", json=fields)
        assert made.status_code == 200, made.text
        batch_id: str = made.json()["id"]
        return batch_id

    def seen(self, batch_id: str, name: str) -> str:
        """A field of its hash."""
        key = f"{self.stack.bus_settings.namespace}:{{p0}}:batch:{batch_id}"
        value = self.server.client.hget(key, name)
        return value.decode() if isinstance(value, bytes) else ""

    async def until(self, condition: Callable[[], bool]) -> None:
        """Looks often: what it waits for may last for a moment only."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.001)

    async def kill_when(self, role: Role, condition: Callable[[], bool]) -> None:
        await self.until(condition)
        role.signal(signal.SIGKILL)
        await role.wait()

    async def until_answers(self) -> None:
        async def is_ready() -> bool:
            return (await self.http.get("/ready")).status_code == 200

        await self.stack.until(is_ready)

    async def ended(self, batch_id: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = await self.http.get(f"/v1/batches/{batch_id}")  # 503 while the server is away
                batch: dict[str, Any] = answer.json()
                if batch.get("status") in ("completed", "failed", "expired", "cancelled"):
                    return batch
                await asyncio.sleep(0.05)

    async def records(self, file_id: str | None) -> dict[str, Any]:
        """By custom id; each once."""
        if file_id is None:
            return {}
        content = (await self.http.get(f"/v1/files/{file_id}/content")).text
        found = [json.loads(text) for text in content.splitlines()]
        records = {record["custom_id"]: record for record in found}
        assert len(records) == len(found)
        return records

    async def check_whole(self, batch: dict[str, Any], n_lines: int, n_failed: int = 0) -> dict[str, Any]:
        """Every line is in one of the files, once. Returns the records of those that failed."""
        counts = {"total": n_lines, "completed": n_lines - n_failed, "failed": n_failed}
        assert batch["request_counts"] == counts
        outputs = await self.records(batch["output_file_id"])
        errors = await self.records(batch["error_file_id"])
        assert (len(outputs), len(errors)) == (n_lines - n_failed, n_failed)
        assert outputs.keys() | errors.keys() == {str(n) for n in range(n_lines)}
        return errors


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def one_place() -> AsyncIterator[Place]:
    with tempfile.TemporaryDirectory(prefix="ss") as folder, Server(Path(folder)) as server:
        stack = Stack(server.url, Path(folder))
        stack.environment["SLOTSTREAM_LEASE_S"] = "1"
        try:
            await stack.start_api()
            yield Place(stack, server)
        finally:
            await stack.close()


@pytest_asyncio.fixture(loop_scope="session")
async def place(one_place: Place) -> AsyncIterator[Place]:
    """No worker and no tasks, before and after."""
    yield one_place
    api = one_place.stack.roles[0]
    for role in one_place.stack.roles:
        if role is not api:
            role.end()
    for key in one_place.server.client.scan_iter(f"{one_place.stack.bus_settings.namespace}:worker:*"):
        one_place.server.client.delete(key)  # a killed one is shown for ten seconds more


async def test_tasks_are_killed_while_lines_are_at_work(place: Place) -> None:
    await place.start_worker()
    tasks = await place.start_tasks()
    batch_id = await place.made([ask(n_predict=100, seed=n) for n in range(12)])
    await place.kill_when(tasks, lambda: place.seen(batch_id, "n_in_flight") == "12")
    await place.start_tasks()
    batch = await place.ended(batch_id)
    assert batch["status"] == "completed"
    await place.check_whole(batch, 12)
    assert batch["usage"]["output_tokens"] == 12 * 100


async def test_tasks_are_killed_at_validation(place: Place) -> None:
    """Of a file so large that a process of its own looks through it: it is there, and ends by itself."""
    await place.start_worker()
    tasks = await place.start_tasks()
    batch_id = await place.made([ask(n_predict=1, padding="x" * 50_000) for _ in range(200)])
    await place.kill_when(tasks, lambda: bool(place.seen(batch_id, "hold")))
    assert place.seen(batch_id, "status") == "validating"
    await place.start_tasks()
    await place.check_whole(await place.ended(batch_id), 200)


async def test_tasks_are_killed_while_they_feed_lines(place: Place) -> None:
    await place.start_worker()
    tasks = await place.start_tasks(batch_in_flight=5000)
    batch_id = await place.made([ask(n_predict=1) for _ in range(1500)])
    await place.kill_when(tasks, lambda: int(place.seen(batch_id, "n_fed") or 0) > 0)
    assert 0 < int(place.seen(batch_id, "n_fed")) < 1500
    await place.start_tasks(batch_in_flight=5000)
    batch = await place.ended(batch_id)
    await place.check_whole(batch, 1500)
    assert batch["usage"]["output_tokens"] == 1500


async def test_tasks_are_killed_while_a_batch_is_being_finalized(place: Place) -> None:
    """Its time is over, and a worker that does not answer holds its lines."""
    worker = await place.start_worker()
    tasks = await place.start_tasks()
    batch_id = await place.made([ask(n_predict=LONG) for _ in range(12)], window="10s")
    await place.until(lambda: place.seen(batch_id, "n_in_flight") == "12")
    await place.stack.until(lambda: generating(place.stack))
    worker.signal(signal.SIGSTOP)
    await place.kill_when(tasks, lambda: place.seen(batch_id, "status") == "finalizing")
    assert int(place.seen(batch_id, "n_in_flight")) > 0
    worker.signal(signal.SIGCONT)
    await place.start_tasks()
    batch = await place.ended(batch_id)
    assert batch["status"] == "expired"
    n_failed = batch["request_counts"]["failed"]
    errors = await place.check_whole(batch, 12, n_failed)
    assert {record["error"]["code"] for record in errors.values()} == {"batch_expired"}


async def test_a_worker_an_api_and_the_server_fall_one_after_the_other(place: Place) -> None:
    worker = await place.start_worker()
    await place.start_tasks()
    batch_id = await place.made([ask(n_predict=150, seed=n) for n in range(60)])
    await place.until(lambda: int(place.seen(batch_id, "n_completed") or 0) > 0)
    worker.signal(signal.SIGKILL)
    await worker.wait()
    await place.start_worker()
    api, port = place.stack.roles[0], place.http.base_url.port
    api.signal(signal.SIGKILL)
    await api.wait()
    place.stack.roles[0] = await place.stack.start_api(port=port)
    place.server.stop()
    place.server.start()
    await place.until_answers()
    batch = await place.ended(batch_id)
    assert batch["status"] == "completed"
    await place.check_whole(batch, 60)
    assert batch["usage"]["output_tokens"] == 60 * 150


async def test_c24_a_line_that_kills_its_workers_fails_alone(place: Place) -> None:
    for _ in range(4):
        place.stack.start("worker", program=MORTAL, model=tiny_model(), alias="tiny", threads=1, **WIDE)
    async with asyncio.timeout(PATIENCE_S):
        while len(await place.stack.workers()) < 4:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.05)
    await place.start_tasks()
    poison = ask() | {"prompt": [1, POISON]}
    batch_id = await place.made([*(ask(n_predict=50) for _ in range(10)), poison])
    batch = await place.ended(batch_id)
    assert batch["status"] == "completed"
    errors = await place.check_whole(batch, 11, 1)
    assert errors["10"]["response"]["status_code"] == 500
    assert "3 workers died" in errors["10"]["response"]["body"]["error"]["message"]
