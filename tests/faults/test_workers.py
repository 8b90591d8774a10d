"""What may become of workers, with real processes. Numbers are those of docs/faults.md.

All share one API on one server; each starts the workers that it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.faults.proxy import Proxy
from tests.faults.server import Server
from tests.models import tiny_model
from tests.stack import LONG, Role, Stack, ask, check_gapless, follow, generating, make_job

pytestmark = pytest.mark.asyncio(loop_scope="session")

LEASE_S = 1.0
"""Of the whole place."""
SLACK_S = 3.0
"""What a busy machine may take to prefill and to be heard."""
N_GENERATIONS = 32


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def place() -> AsyncIterator[tuple[Stack, Server]]:
    with tempfile.TemporaryDirectory(prefix="ss") as folder, Server(Path(folder)) as server:
        stack = Stack(server.url, Path(folder))
        stack.environment["SLOTSTREAM_LEASE_S"] = str(LEASE_S)
        try:
            await stack.start_api(keep_alive_s=0.2)
            yield stack, server
        finally:
            await stack.close()


@pytest_asyncio.fixture(loop_scope="session")
async def stack(place: tuple[Stack, Server]) -> AsyncIterator[Stack]:
    """An API and no worker, before and after."""
    stack, server = place
    yield stack
    for role in stack.roles[1:]:
        role.end()
    for key in server.client.scan_iter(f"{stack.bus_settings.namespace}:worker:*"):
        server.client.delete(key)  # a killed one is shown for ten seconds more


async def start_workers(stack: Stack, n_workers: int, **settings: Any) -> list[Role]:
    """All at once, since each takes its time; ready."""
    given = {"model": tiny_model(), "alias": "tiny", "threads": 1, "ctx_size": 16384, "parallel": 2, **settings}
    before = await stack.workers()
    roles = [stack.start("worker", **given) for _ in range(n_workers)]

    async def are_ready() -> bool:
        return len(await stack.workers() - before) == n_workers

    await stack.until(are_ready, roles[0])
    return roles


async def start_one_and_a_sleeper(stack: Stack, **settings: Any) -> tuple[Role, Role]:
    """A worker that gets all jobs, and one that is ready and asleep until it gets SIGCONT."""
    first, second = await start_workers(stack, 2, **settings)
    second.signal(signal.SIGSTOP)
    return first, second


async def record(stack: Stack, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = (await stack.http.get(f"/v1/jobs/{job_id}")).json()
    return job


async def until_running(stack: Stack, n_jobs: int) -> None:
    async def are_running() -> bool:
        return len(await generating(stack)) >= n_jobs

    await stack.until(are_running)


@asynccontextmanager
async def streamed(stack: Stack, body: dict[str, Any], path: str = "/completion") -> AsyncIterator[Stream]:
    async with stack.http.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200
        stream = Stream(response)
        try:
            yield stream
        finally:
            stream.reading.cancel()


class Stream:
    """A stream as it comes in."""

    def __init__(self, response: httpx.Response) -> None:
        self.lines: list[tuple[float, str]] = []
        """With the times at which they came."""
        self._response = response
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for line in self._response.aiter_lines():
            self.lines.append((time.monotonic(), line))

    async def until(self, n_lines: int, what: str = "data: ") -> None:
        while sum(line.startswith(what) for _, line in self.lines) < n_lines:
            assert not self.reading.done(), self.lines[-3:]
            await asyncio.sleep(0.005)

    @property
    def said(self) -> list[Any]:
        return [json.loads(line[6:]) for _, line in self.lines if line.startswith("data: {")]


async def test_01_a_killed_workers_stream_goes_on_within_a_lease_and_a_half(stack: Stack) -> None:
    """Also C31 (c)."""
    first, second = await start_one_and_a_sleeper(stack)
    async with streamed(stack, ask(n_predict=LONG)) as stream:
        await stream.until(3)
        first.signal(signal.SIGKILL)
        killed_at = time.monotonic()
        second.signal(signal.SIGCONT)
        await stream.reading
    said_at = [at for at, line in stream.lines if line.startswith("data: ")]
    silences = [after - before for before, after in pairwise(said_at) if after > killed_at]
    assert LEASE_S / 2 < max(silences) < 1.5 * LEASE_S + SLACK_S
    plain = (await stack.http.post("/completion", json=ask(n_predict=LONG))).json()
    assert "".join(event["content"] for event in stream.said) == plain["content"]
    assert [event["stop"] for event in stream.said].count(True) == 1


@pytest.mark.slow
async def test_02_jobs_outlive_all_workers_and_streams_are_kept_alive(stack: Stack) -> None:
    """Also C32: the comments of a long wait are no events."""
    workers = await start_workers(stack, 2)
    jobs = [await make_job(stack, ask(n_predict=200, seed=n)) for n in range(6)]
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "ignore_eos": True}
    async with streamed(stack, chat, "/v1/chat/completions") as stream:
        await stream.until(2)
        for worker in workers:
            worker.signal(signal.SIGKILL)
        await stream.until(8, ": keep-alive")
        assert (await stack.http.get("/live")).status_code == 200
        await start_workers(stack, 1, parallel=4)
        await stream.reading
    ended = [job for _, job in await asyncio.gather(*(follow(stack, job) for job in jobs))]
    assert [job["status"] for job in ended] == ["succeeded"] * 6
    lines = [line for _, line in stream.lines if line]
    assert lines[-1] == "data: [DONE]" and lines.count("data: [DONE]") == 1
    assert all(line.startswith((": keep-alive", "data: ")) for line in lines)


@pytest.mark.slow
async def test_03_a_deploy_gives_32_generations_to_the_next_worker_at_once(stack: Stack) -> None:
    """Nothing waits for a lease, which is 30 s here."""
    first, second = await start_one_and_a_sleeper(
        stack, parallel=N_GENERATIONS, ctx_size=N_GENERATIONS * 512, lease_s=30
    )
    jobs = [await make_job(stack, ask(n_predict=400, seed=n), priority="interactive") for n in range(N_GENERATIONS)]
    readers = [asyncio.create_task(follow(stack, job)) for job in jobs]

    async def are_running() -> bool:
        return await stack.busy_slots() == N_GENERATIONS

    await stack.until(are_running)
    first.signal(signal.SIGTERM)
    assert await first.wait() == 0
    second.signal(signal.SIGCONT)
    left_at = time.monotonic()
    await stack.until(are_running)
    assert time.monotonic() - left_at < 1 + SLACK_S
    for tokens, job in await asyncio.gather(*readers):
        check_gapless(tokens)
        assert (job["status"], job["attempts"]) == ("succeeded", 1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_04_who_is_told_twice_or_killed_leaves_nothing_in_limbo(stack: Stack, number: signal.Signals) -> None:
    """C54: two at work and three that wait, the grace not over."""
    first, second = await start_one_and_a_sleeper(stack, grace_s=60)
    jobs = [await make_job(stack, ask(n_predict=LONG, seed=n)) for n in range(5)]
    await until_running(stack, 2)
    first.signal(signal.SIGTERM)
    await stack.until(lambda: is_draining(first))
    assert first.process.poll() is None
    first.signal(number)
    assert await first.wait() == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    if number is signal.SIGTERM:
        assert [(await record(stack, job))["status"] for job in jobs] == ["queued"] * 5
    second.signal(signal.SIGCONT)
    ended = [job for _, job in await asyncio.gather(*(follow(stack, job) for job in jobs))]
    assert [job["status"] for job in ended] == ["succeeded"] * 5
    if number is signal.SIGTERM:
        assert [job["attempts"] for job in ended] == [1] * 5


async def is_draining(worker: Role) -> bool:
    return '"draining"' in worker.log


@pytest.mark.slow
@pytest.mark.parametrize("how", ["frozen", "cut off"])
async def test_05_06_a_worker_that_was_away_for_two_leases_says_nothing_more(
    stack: Stack, place: tuple[Stack, Server], how: str
) -> None:
    async with Proxy(place[1].socket) as network:
        [first] = await start_workers(stack, 1, redis_url=network.url)
        job_id = await make_job(stack, ask(n_predict=7000), priority="interactive")
        reader = asyncio.create_task(follow(stack, job_id))
        await until_running(stack, 1)
        if how == "frozen":
            first.signal(signal.SIGSTOP)
        else:
            network.cut()
            await stack.until(lambda: has_lost(first))  # by its own clock, for nobody can tell it
        await start_workers(stack, 1)
        await stack.until(lambda: has_attempts(stack, job_id, 2))
        first.signal(signal.SIGCONT)
        network.mend()
        await stack.until(lambda: has_lost(first))
        await stack.until(lambda: has_one_busy(stack))
        assert (await stack.http.post(f"/v1/jobs/{job_id}/cancel")).status_code == 200
        tokens, job = await reader
        check_gapless(tokens)
        assert (job["status"], job["attempts"]) == ("cancelled", 2)
        assert await follow(stack, job_id) == (tokens, job)


async def has_lost(worker: Role) -> bool:
    return "a lease was lost" in worker.log


async def has_attempts(stack: Stack, job_id: str, n_attempts: int) -> bool:
    return (await record(stack, job_id))["attempts"] >= n_attempts


PTRACE_CONT, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 7, 0x4206, 0x4207, 0x40000000

IMPATIENT = """
import sys
import worker.app
from worker.__main__ import main
worker.app.STALL_S = 2.0
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only here one thread alone can be stopped")
async def test_07_a_decode_thread_that_hangs_loses_its_job_and_ends_its_worker(
    stack: Stack, place: tuple[Stack, Server]
) -> None:
    """The thread is stopped as a debugger would stop it; all others run on."""
    for _ in range(2):
        first, second = await start_one_and_a_sleeper(stack, program=IMPATIENT)
        [name] = [worker for worker in await stack.workers() if f"-{first.process.pid}-" in worker]
        job_id = await make_job(stack, ask(n_predict=7000), priority="interactive")
        await until_running(stack, 1)

        async def is_alive(name: str = name) -> bool:
            """It has announced itself in the last second, for ten."""
            return place[1].client.pttl(f"{stack.bus_settings.namespace}:worker:{name}") > 9000

        await stop_thread(await busiest_thread(first.process.pid), is_alive)
        second.signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(first.process.wait, 12)
            break
        # It was stopped with a lock of the allocator in its hands, for which all others wait: no hang of this kind.
        await stack.http.post(f"/v1/jobs/{job_id}/cancel")
        first.end()
        second.end()
    assert first.process.returncode == 70
    assert "the decode thread hangs" in first.log
    await stack.until(lambda: has_attempts(stack, job_id, 2))
    await stack.http.post(f"/v1/jobs/{job_id}/cancel")
    tokens, job = await follow(stack, job_id)
    check_gapless(tokens)
    assert job["status"] == "cancelled"


BROKEN = """
import sys
from worker.__main__ import main
from worker.engine.llama import Context
compute, calls = Context._compute, []
def fail(self, interrupt):
    calls.append(None)
    return compute(self, interrupt) if len(calls) < 100 else -3
Context._compute = fail
sys.exit(main())
"""


@pytest.mark.slow
async def test_07_a_worker_that_can_compute_no_more_ends_and_its_job_goes_on_elsewhere(stack: Stack) -> None:
    [first] = await start_workers(stack, 1, program=BROKEN)
    job_id = await make_job(stack, ask(n_predict=300), priority="interactive")
    assert await first.wait() == 1
    await start_workers(stack, 1)
    assert "there is no new context to be had" in first.log
    tokens, job = await follow(stack, job_id)
    check_gapless(tokens)
    assert (job["status"], job["attempts"]) == ("succeeded", 2)


async def busiest_thread(pid: int) -> int:
    """The one that decodes."""

    def ticks() -> dict[str, int]:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return {
            task.name: sum(map(int, (task / "stat").read_text().rsplit(")", 1)[1].split()[11:13])) for task in tasks
        }

    before = ticks()
    await asyncio.sleep(0.2)
    return int(max(after := ticks(), key=lambda name: after[name] - before.get(name, 0)))


async def stop_thread(thread: int, is_alive: Callable[[], Awaitable[bool]]) -> None:
    """At a moment when it does not hold the interpreter: with it, it would stop all others too."""
    trace(PTRACE_SEIZE, thread)
    threading.Thread(target=reap, args=(thread,), daemon=True).start()
    for _ in range(20):
        trace(PTRACE_INTERRUPT, thread)
        await asyncio.sleep(1.2)
        if await is_alive():
            return
        trace(PTRACE_CONT, thread)
        await asyncio.sleep(0.1)
    raise AssertionError("the thread always holds the interpreter")


def trace(request: int, thread: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    if libc.ptrace(request, thread, 0, 0) != 0:
        pytest.skip(f"this process may not stop threads of others: {os.strerror(ctypes.get_errno())}")


def reap(thread: int) -> None:
    """Its process cannot end before whoever stopped it has seen its end."""
    while os.WIFSTOPPED(os.waitpid(thread, WALL)[1]):
        pass


@pytest.mark.slow
async def test_c15_a_reader_that_goes_frees_its_slot_and_hurts_nobody(stack: Stack) -> None:
    """(b): within a decode or two, and the neighbour's text is what it is alone."""
    await start_workers(stack, 1)
    alone = (await stack.http.post("/completion", json=ask(n_predict=LONG, seed=7))).json()["content"]
    async with streamed(stack, ask(n_predict=7000)) as stream:
        await stream.until(5)
        neighbour = asyncio.create_task(stack.http.post("/completion", json=ask(n_predict=LONG, seed=7)))
        await until_running(stack, 2)
    gone_at = time.monotonic()
    await stack.until(lambda: has_one_busy(stack))
    assert time.monotonic() - gone_at < 1 + SLACK_S  # a worker shows its slots twice a second
    assert (await neighbour).json()["content"] == alone


async def has_one_busy(stack: Stack) -> bool:
    return await stack.busy_slots() == 1


async def test_c15_fifty_quick_departures_leave_nothing_behind(stack: Stack, place: tuple[Stack, Server]) -> None:
    """(e) and (f): no slot, no connection, no channel, and no descriptor of the API."""
    await start_workers(stack, 1)
    await stack.http.post("/completion", json=ask())
    before = await left(stack, place[1])
    long_prompt = "word " * 4000

    async def come_and_go(number: int) -> None:
        body = ask(long_prompt if number % 10 == 0 else "Hi", n_predict=4000, stream=number % 2 == 0)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02 * (1 + number % 7)):
                await stack.http.post("/completion", json=body)

    await asyncio.gather(*(come_and_go(number) for number in range(50)))

    async def is_as_before() -> bool:
        return await left(stack, place[1]) == before

    await stack.until(is_as_before)
    assert (await stack.http.post("/completion", json=ask())).status_code == 200


async def left(stack: Stack, server: Server) -> dict[str, Any]:
    """What a request could leave behind."""
    clients = [client["name"] for client in server.client.client_list()]
    return {
        "busy": await stack.busy_slots(),
        "connections": clients.count("api"),
        "channels": [name for name in server.client.pubsub_channels() if b":live:" in name],
    }
