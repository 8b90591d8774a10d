"""What readers may do, and what becomes of them when their API dies. Numbers are those of docs/faults.md."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
import pytest

from shared.bus import Bus, Chunk, Claimed, Wanted, open_bus
from shared.events import Finished, Tokens
from shared.jobs import Completion, Job
from tests.api.sse_lines import events
from tests.faults.conftest import Site
from tests.faults.test_server import start_reading
from tests.ports import free_port
from tests.stack import check_gapless, follow

pytestmark = pytest.mark.asyncio(loop_scope="session")

N_SLOW = 10
N_EVENTS = 4000
CHUNKS_AT_ONCE = 20
MOST_MB_OF_A_READER = 0.3
"""All events of this job together take several times that."""


@pytest.mark.slow
async def test_20_a_reader_of_a_byte_a_second_costs_no_memory_and_holds_nobody_up(site: Site) -> None:
    """Also C32. Its log is written as fast as the bus takes it."""
    n_before = resident_mb(site.roles[0].process.pid)
    async with open_bus(site.stack.bus_settings, name="test") as bus:
        claimed = await a_claimed_job(bus)
        early = await ask_slowly(site, claimed.job.id)
        await say_everything(bus, claimed)
        late = await ask_slowly(site, claimed.job.id)
        assert await bus.queue.finish(claimed.lease, Finished(status="succeeded"), N_EVENTS + 1)
    quick, job = await follow(site.stack, claimed.job.id)
    check_gapless(quick)
    assert (len(quick), job["status"]) == (N_EVENTS, "succeeded")
    for reader in (*early, *late):
        assert len(reader.recv(1)) == 1
    await site.check_well()
    assert resident_mb(site.roles[0].process.pid) - n_before < MOST_MB_OF_A_READER * 2 * N_SLOW
    lines = (await asyncio.to_thread(read_all, early[0])).split("\n")
    for reader in (*early, *late):
        reader.close()
    numbers = [int(line[4:]) for line in lines if line.startswith("id: ")]
    assert numbers[-1] == N_EVENTS + 1 and numbers == list(range(numbers[0], N_EVENTS + 2))


async def a_claimed_job(bus: Bus) -> Claimed:
    """Of a model that no worker here has."""
    job = Job(id=bus.queue.new_job_id(), model="other", request=Completion(prompts=("Hi",)), is_durable=True)
    await bus.queue.enqueue(job)
    [claimed] = await bus.queue.claim("test", "other", Wanted(0, 1, 0))
    return claimed


async def say_everything(bus: Bus, claimed: Claimed) -> None:
    for first in range(1, N_EVENTS + 1, CHUNKS_AT_ONCE):
        numbers = range(first, first + CHUNKS_AT_ONCE)
        await bus.queue.append([Chunk(claimed.lease, n, (Tokens(ids=(n,), text=f" {n:>300}"),)) for n in numbers])


async def ask_slowly(site: Site, job_id: str) -> list[socket.socket]:
    return [await asyncio.to_thread(a_slow_reader, site, f"/v1/jobs/{job_id}/events") for _ in range(N_SLOW)]


def a_slow_reader(site: Site, path: str) -> socket.socket:
    """One with next to no room, which has seen the headers."""
    url = site.http.base_url
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    reader.settimeout(20)
    reader.connect((url.host, url.port))
    reader.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
    while b"\r\n\r\n" not in reader.recv(4096):
        pass
    return reader


def read_all(reader: socket.socket) -> str:
    content = b""
    with reader:
        while data := reader.recv(65536):
            content += data
    return content.decode(errors="replace")


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


async def test_22_a_reader_goes_on_at_another_api_when_its_own_is_killed(site: Site) -> None:
    """With nothing but the last id it saw, while the job runs and after its end."""
    port = free_port()
    doomed = site.stack.start("api", port=port)
    reading = await start_reading(site)
    path = f"/v1/jobs/{reading.job_id}/events"
    lines: list[str] = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as there:
        await site.stack.until(lambda: answers(there))
        with pytest.raises(httpx.TransportError):
            async with there.stream("GET", path) as response:
                async for line in response.aiter_lines():
                    lines.append(line)
                    if line == "" and len(lines) > 20:
                        doomed.process.kill()
    seen = events(lines[: len(lines) - lines[::-1].index("")])
    whole, job = await reading.reader
    for _ in range(2):
        rest = (await site.http.get(path, headers={"Last-Event-ID": seen[-1].id or ""})).text
        heard = [*seen, *events(rest.splitlines())]
        assert [(int(event.id or 0), event.data["text"]) for event in heard[:-1]] == whole
        assert heard[-1].data == job


async def answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/ready")).status_code == 200
    except httpx.TransportError:
        return False
