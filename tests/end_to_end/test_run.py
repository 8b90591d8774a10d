"""`slotstream run` with real processes: on a stack of its own, and with a service; killed half way, and run again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.api.cli.conftest import RunCommand, Running
from tests.stack import Role, Stack

N_LINES = 40


def line(number: int) -> dict[str, Any]:
    if number % 10 == 3:
        return {
            "custom_id": f"l{number}",
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"input": f"word {number}"},
        }
    # The last ones are long: they go on when a test looks how far the others are.
    length = 20 if number < 20 else 150
    body = {"prompt": f"Line {number} says", "max_tokens": length, "seed": number, "ignore_eos": True}
    return {"custom_id": f"l{number}", "method": "POST", "url": "/completion", "body": body}


def write_input(path: Path) -> None:
    lines = [json.dumps(line(number)) for number in range(N_LINES)]
    lines[7] = "{not json"
    lines[11] = json.dumps(line(11) | {"body": {"prompt": [1], "n_predict": "many"}})
    path.write_text("\n".join(lines) + "\n")


def start(folder: Path, model: Path) -> subprocess.Popen[bytes]:
    arguments = [
        "in.jsonl",
        "-o",
        "out.jsonl",
        "-m",
        str(model),
        "-t",
        "1",
        "-np",
        "4",
        "-c",
        "4096",
        "--batch-in-flight",
        "8",
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "api.cli", "run", *arguments],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_run_that_was_stopped_half_way_goes_on_where_it_was(
    how: signal.Signals, tmp_path: Path, model: Path
) -> None:
    write_input(tmp_path / "in.jsonl")
    first = start(tmp_path, model)
    part = tmp_path / "out.jsonl.part"
    async with asyncio.timeout(40):
        while not (part.exists() and part.read_bytes().count(b"\n") >= 5):
            assert first.poll() is None
            await asyncio.sleep(0.02)
    first.send_signal(how)
    await asyncio.to_thread(first.communicate)
    kept = part.read_bytes().splitlines()
    assert 5 <= len(kept) < N_LINES

    again = start(tmp_path, model)
    output, errors = await asyncio.to_thread(again.communicate)
    assert again.returncode == 1, errors.decode()  # two lines are bad
    written = (tmp_path / "out.jsonl").read_bytes().splitlines()
    records = [json.loads(text) for text in written]
    assert written[: len(kept) - 1] == kept[:-1], "what was written stays as it was"
    assert Counter(record["custom_id"] for record in records) == Counter(
        [f"l{number}" for number in range(N_LINES) if number != 7] + [None]
    )
    assert [record["custom_id"] for record in records] == [
        f"l{number}" if number != 7 else None for number in range(N_LINES)
    ]
    assert (records[7]["error"]["code"], records[7]["error"]["line"]) == ("invalid_json", 8)
    assert records[11]["response"]["status_code"] == 400
    assert all(records[n]["response"]["status_code"] == 200 for n in range(N_LINES) if n not in (7, 11))
    assert b"40 lines" in output and b"2 failed" in output
    assert _processes_of(tmp_path) == []


@pytest.fixture
def bulk(tmp_path: Path) -> RunCommand:
    return RunCommand(tmp_path)


@pytest.fixture
async def service(stack: Stack, model: Path) -> Stack:
    """All roles, on a server that they may lose."""
    await stack.start_worker(model, ctx_size=4096, parallel=4)
    stack.start("api.tasks")
    return stack


def go(stack: Stack, *more: str) -> tuple[str, ...]:
    return ("in.jsonl", "-o", "out.jsonl", "--url", str(stack.http.base_url), *more)


async def ended(running: Running) -> int:
    return await asyncio.to_thread(running.wait)


async def until_written(bulk: RunCommand, n_lines: int, running: Running) -> None:
    async with asyncio.timeout(40):
        while not (bulk.part.exists() and bulk.part.read_bytes().count(b"\n") >= n_lines):
            assert running.process.is_alive(), running.lines.read()
            await asyncio.sleep(0.02)


async def listed(stack: Stack, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await stack.http.get(path)).json()["data"]
    return found


@pytest.mark.asyncio(loop_scope="session")
async def test_a_run_with_a_service_is_a_batch_of_which_nothing_is_left(
    served: Stack, shared_tasks: Role, bulk: RunCommand
) -> None:
    lines = [line(number) for number in range(10)] + [line(0), line(11) | {"url": "/v1/models"}]
    lines.append(line(12) | {"body": {"prompt": [1], "n_predict": "many"}})
    bulk.source.write_text("not json\n\n" + "".join(json.dumps(each) + "\n" for each in lines))
    files_before = await listed(served, "/v1/files")
    with bulk.start(*go(served)) as run:
        assert await ended(run) == 1, run.lines.read()
    records = bulk.results()
    assert [record["custom_id"] for record in records] == [None, *(each["custom_id"] for each in lines)]
    assert {record["custom_id"]: record["line"] for record in records if "line" in record} == {
        None: 1,
        "l0": 13,
        "l11": 14,
        "l12": 15,
    }
    assert [record["error"] and record["error"]["code"] for record in records] == [
        "invalid_json",
        *[None] * 10,
        "duplicate_custom_id",
        "invalid_url",
        None,
    ]
    assert records[4]["response"]["body"]["object"] == "list"
    assert "n_predict" in records[-1]["response"]["body"]["error"]["message"]
    batch = (await listed(served, "/v1/batches"))[0]
    assert (batch["status"], batch["metadata"], batch["endpoint"]) == ("completed", {"input": "in.jsonl"}, "*")
    assert batch["request_counts"] == {"total": 11, "completed": 10, "failed": 1}
    assert await listed(served, "/v1/files") == files_before


@pytest.mark.asyncio(loop_scope="session")
async def test_a_stopped_run_leaves_its_batch_to_the_service_until_it_is_begun_anew(
    served: Stack, shared_tasks: Role, bulk: RunCommand
) -> None:
    endless = {"prompt": "a", "max_tokens": 900, "ignore_eos": True}
    request = {"custom_id": "a", "url": "/completion", "body": endless}
    bulk.source.write_text("".join(json.dumps(request | {"custom_id": str(n)}) + "\n" for n in range(400)))
    with bulk.start(*go(served)) as run:

        async def is_running() -> bool:
            newest = (await listed(served, "/v1/batches"))[:1]
            return any(each["status"] == "in_progress" for each in newest)

        await served.until(is_running)
        run.send_signal(signal.SIGINT)
        assert await ended(run) == 130
        assert "the service goes on with the batch" in run.lines.read()
    assert await is_running()
    bulk.source.write_text(json.dumps(line(0)) + "\n")
    with bulk.start(*go(served, "--restart")) as run:
        assert await ended(run) == 0, run.lines.read()
    assert [record["custom_id"] for record in bulk.results()] == ["l0"]
    new, old = (await listed(served, "/v1/batches"))[:2]
    assert (new["status"], old["status"].removesuffix("ling").removesuffix("led")) == ("completed", "cancel")


@pytest.mark.slow
async def test_a_run_outlives_the_death_of_its_whole_service(service: Stack, bulk: RunCommand, model: Path) -> None:
    write_input(bulk.source)
    port = service.http.base_url.port
    with bulk.start(*go(service)) as run:
        await until_written(bulk, 5, run)
        for role in service.roles:
            role.signal(signal.SIGKILL)
            await role.wait()
        assert run.process.is_alive(), "all was done already"
        await service.start_api(port)
        service.start("api.tasks")
        await service.start_worker(model, ctx_size=4096, parallel=4)
        assert await ended(run) == 1, run.lines.read()
    assert [record["custom_id"] for record in bulk.results()] == [
        f"l{number}" if number != 7 else None for number in range(N_LINES)
    ]
    [batch] = await listed(service, "/v1/batches")
    assert batch["request_counts"] == {"total": 39, "completed": 38, "failed": 1}


@pytest.mark.slow
async def test_a_run_that_was_killed_goes_on_with_the_batch_of_its_service(service: Stack, bulk: RunCommand) -> None:
    write_input(bulk.source)
    with bulk.start(*go(service)) as run:
        await until_written(bulk, 5, run)
        run.send_signal(signal.SIGKILL)
        await asyncio.to_thread(run.process.join)
    kept = bulk.part.read_bytes().splitlines()
    with bulk.start(*go(service)) as run:
        assert await ended(run) == 1, run.lines.read()
    assert bulk.output.read_bytes().splitlines()[: len(kept) - 1] == kept[:-1]
    assert [record["custom_id"] for record in bulk.results()] == [
        f"l{number}" if number != 7 else None for number in range(N_LINES)
    ]
    assert len(await listed(service, "/v1/batches")) == 1


def _processes_of(folder: Path) -> list[str]:
    """Command lines of processes that still have to do with a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in command:
                found.append(command)
    return found
