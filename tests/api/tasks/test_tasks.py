from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from api.tasks import app, arqworker
from shared.bus import Bus
from shared.events import Finished
from shared.jobs import Completion, Job, JobStatus
from shared.settings import TasksSettings
from tests.api.cli.conftest import environment
from tests.api.tasks.conftest import RestartableServer


@asynccontextmanager
async def tasks_process(settings: TasksSettings, **more: str) -> AsyncIterator[Process]:
    """`slotstream tasks`, killed at the end of the block; `more` are variables of its own."""
    variables = {
        "SLOTSTREAM_REDIS_URL": settings.redis_url.get_secret_value(),
        "SLOTSTREAM_STORE_URL": settings.store_url.get_secret_value(),
        "SLOTSTREAM_LOG_FORMAT": "json",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "api.tasks"),
        env=environment(**variables, **more),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: Process, text: str) -> str:
    """The next line with the text that the process writes."""
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while text not in (line := (await process.stderr.readline()).decode()):
            assert line, f"it ended without saying {text!r}"
    return line


async def ended_by_itself(bus: Bus) -> JobStatus:
    """How a job ends that nobody takes and whose deadline is now."""
    job = Job(
        id=bus.queue.new_job_id(), model="m", request=Completion(prompts=("x",)), deadline_s=0.01, is_durable=True
    )
    async with bus.log.follow(job.id, expects=True) as reader:
        await bus.queue.enqueue(job)
        async with asyncio.timeout(30):
            async for _, event in reader:
                if isinstance(event, Finished):
                    return JobStatus(event.status)
    raise AssertionError("the log ended without an ending")


async def test_an_overdue_job_that_nobody_holds_is_ended_and_its_row_taken(
    settings: TasksSettings, bus: Bus, server: RestartableServer
) -> None:
    async with tasks_process(settings):
        assert await ended_by_itself(bus) is JobStatus.EXPIRED
        assert await ended_by_itself(bus) is JobStatus.EXPIRED
        async with asyncio.timeout(20):
            while await bus.outbox.read():  # noqa: ASYNC110 - a deleted row sets no event
                await asyncio.sleep(0.05)


async def test_housekeeping_goes_on_after_a_restart_of_the_server(
    settings: TasksSettings, bus: Bus, server: RestartableServer
) -> None:
    async with tasks_process(settings) as process:
        assert await ended_by_itself(bus) is JobStatus.EXPIRED
        server.stop()
        await said(process, "waiting for the server")
        server.start()
        assert await ended_by_itself(bus) is JobStatus.EXPIRED
        assert process.returncode is None


@pytest.mark.parametrize("is_server_away", [False, True])
async def test_it_leaves_with_0_when_it_is_told_to(
    settings: TasksSettings, server: RestartableServer, is_server_away: bool
) -> None:
    if is_server_away:
        server.stop()
    async with tasks_process(settings) as process:
        await said(process, "waiting for the server" if is_server_away else "ready")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await process.wait() == 0


async def test_it_refuses_a_server_that_throws_jobs_away(settings: TasksSettings, server: RestartableServer) -> None:
    async with Redis.from_url(server.url) as redis:
        await redis.config_set("maxmemory-policy", "allkeys-lru")
    async with tasks_process(settings) as process:
        await said(process, "slotstream tasks: SLOTSTREAM_REDIS_URL: the server has maxmemory-policy 'allkeys-lru'")
        assert await process.wait() == 2


async def test_it_leaves_no_key_of_its_own_but_its_queues_that_would_stay(
    settings: TasksSettings, bus: Bus, server: RestartableServer
) -> None:
    async with tasks_process(settings) as process:
        await ended_by_itself(bus)
        process.send_signal(signal.SIGTERM)
        await process.wait()
    async with Redis.from_url(server.url) as redis:
        names = [name for name in await redis.keys("*") if b"arq" in name or b"tasks" in name]
        queues = {b"ss:tasks", b"ss:tasks:store"}
        assert {name for name in names if await redis.pttl(name) < 0} <= queues
        assert max([await redis.zcard(name) for name in queues]) <= 4  # this turn and the next of its cron jobs


async def test_work_that_falls_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "FIRST_PAUSE_S", 0.001)
    n_starts = 0

    async def work() -> None:
        nonlocal n_starts
        n_starts += 1
        if n_starts == 3:
            raise asyncio.CancelledError
        raise OSError("gone")

    with pytest.raises(asyncio.CancelledError):
        await app.stand_up_again("part", work)
    assert n_starts == 3


def test_only_json_is_read_from_the_queue() -> None:
    serializers: dict[str, Any] = arqworker._serializers()
    assert serializers["job_deserializer"](serializers["job_serializer"]({"a": [1]})) == {"a": [1]}
    with pytest.raises(ValueError):
        serializers["job_deserializer"](b"\x80\x05cos\nsystem\n")
