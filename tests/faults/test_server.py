"""What the queue's server may do to us, with real processes on all sides. Numbers are those of docs/faults.md."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from shared.bus.keys import Keys
from tests.faults.conftest import Site
from tests.stack import LONG, ask, check_gapless, follow, make_job

pytestmark = pytest.mark.asyncio(loop_scope="session")

JOB = {"endpoint": "/completion", "body": ask()}
N_AT_ONCE = 3


class Reading:
    """A long job with a reader attached."""

    def __init__(self, site: Site, job_id: str) -> None:
        self.site = site
        self.job_id = job_id
        self.heard: list[tuple[int, str]] = []
        self.reader = asyncio.create_task(follow(site.stack, job_id, heard=self.heard))

    async def until_heard(self, n_more: int) -> None:
        n_tokens = len(self.heard) + n_more
        while len(self.heard) < n_tokens:
            assert not self.reader.done(), "the job ended too soon"
            await asyncio.sleep(0.001)

    async def check_whole(self) -> dict[str, Any]:
        """The reader got every token once, and the ending with the text that they make. Returns the job."""
        job = await self.check_ended()
        assert "".join(text for _, text in self.heard) == job["result"]["content"] != ""
        return job

    async def check_ended(self) -> dict[str, Any]:
        """The reader got every number once, and the one ending. Returns the job."""
        _, job = await self.reader
        check_gapless(self.heard)
        assert job["status"] == "succeeded", job
        assert await self.n_endings() == 1
        return job

    async def n_endings(self) -> int:
        """In the job's log."""
        key = Keys(self.site.stack.bus_settings.namespace, 1).log(self.job_id)
        entries = await asyncio.to_thread(self.site.server.client.xrange, key)
        return sum(b"end" in fields for _, fields in entries)


async def start_reading(site: Site, n_predict: int = LONG) -> Reading:
    reading = Reading(site, await make_job(site.stack, ask(n_predict=n_predict), priority="interactive"))
    await reading.until_heard(5)
    return reading


async def finished(site: Site, job_ids: list[str]) -> list[dict[str, Any]]:
    return [job for _, job in await asyncio.gather(*(follow(site.stack, job_id) for job_id in job_ids))]


async def test_08_a_restart_needs_nobodys_hand(site: Site) -> None:
    reading = await start_reading(site)
    waiting = [await make_job(site.stack, ask(seed=n)) for n in range(8)]
    site.server.stop()
    await site.check_refuses()
    site.server.start()
    await reading.check_whole()
    assert Counter(job["status"] for job in await finished(site, waiting)) == {"succeeded": 8}


async def test_08_a_torn_connection_costs_nothing(site: Site) -> None:
    reading = await start_reading(site)
    for _ in range(5):
        site.network.reset()
        await asyncio.sleep(0.1)
        assert (await site.http.post("/v1/jobs", json=JOB)).status_code in (202, 503)
    assert (await reading.check_whole())["attempts"] == 1


@pytest.mark.slow
async def test_09_a_server_that_lost_its_last_second_ends_every_job_once(site: Site) -> None:
    reading = await start_reading(site)
    n_kept = site.server.n_written
    key = {"Idempotency-Key": "before the power cut"}
    said_yes = await site.http.post("/v1/jobs", json=JOB, headers=key)
    await reading.until_heard(50)
    site.server.kill()
    site.server.lose_tail(n_kept)
    site.server.start()
    await site.until_status("/ready", 200)
    assert await site.status(f"/v1/jobs/{said_yes.json()['id']}") == 404
    again = [await site.http.post("/v1/jobs", json=JOB, headers=key) for _ in range(2)]
    assert [response.status_code for response in again] == [202, 200]
    assert [job["status"] for job in await finished(site, [again[0].json()["id"]])] == ["succeeded"]
    # Not its text: what was lost is computed again, and in other company floating point may decide otherwise.
    await reading.check_ended()


async def test_09_words_said_before_the_cut_are_not_taken_for_those_after_it(site: Site) -> None:
    """Not even the claim was kept: the worker gets its job again, under the same epoch, as if for the first time."""
    reading = await start_reading(site)
    await reading.until_heard(50)
    site.server.kill()
    site.server.lose_tail(site.server.first_written(f"log:{reading.job_id}"))
    site.server.start()
    assert (await reading.check_whole())["attempts"] == 1


async def test_10_an_emptied_server_is_told_to_readers_and_taken_into_use(site: Site) -> None:
    job_id = await make_job(site.stack, ask(n_predict=3000), priority="interactive")
    path = f"/v1/jobs/{job_id}/events"
    async with (
        site.http.stream("GET", path) as events,
        site.http.stream("POST", "/completion", json=ask(n_predict=3000, stream=True)) as answer,
    ):
        lines_of_events, lines_of_answer = events.aiter_lines(), answer.aiter_lines()
        await anext(lines_of_events), await anext(lines_of_answer)
        await asyncio.to_thread(site.server.client.flushall)
        last_event = [line async for line in lines_of_events if line.startswith("data")][-1]
        last_of_answer = [line async for line in lines_of_answer if line.startswith("data")][-1]
    assert '"error"' in last_event and '"code":404' in last_event
    assert '"error"' in last_of_answer and '"code":503' in last_of_answer
    for gone in (path, f"/v1/jobs/{job_id}"):
        assert await site.status(gone) == 404
    await site.stack.until(lambda: is_idle(site))


async def is_idle(site: Site) -> bool:
    return await site.stack.workers() != set() and await site.stack.busy_slots() == 0


async def test_11_a_full_server_takes_no_jobs_and_drains(site: Site) -> None:
    reading = await start_reading(site)
    waiting = [await make_job(site.stack, ask(n_predict=2000)) for _ in range(6)]
    site.server.client.config_set("maxmemory", "1mb")
    try:
        assert "memory" in (await site.check_refuses()).json()["error"]["message"]
        cancelled = await site.http.post(f"/v1/jobs/{waiting.pop()}/cancel")
        assert cancelled.json()["status"] in ("cancelled", "running")
        await reading.check_whole()
    finally:
        site.server.client.config_set("maxmemory", "0")
    for job_id in waiting:
        await site.http.post(f"/v1/jobs/{job_id}/cancel")


async def test_12_a_server_that_evicts_is_refused_also_after_a_failover(site: Site) -> None:
    site.server.stop()
    await site.until_status("/ready", 503)
    site.server.start(maxmemory_policy="allkeys-lru")

    async def is_named() -> bool:
        return "maxmemory-policy" in (await site.http.get("/ready")).text

    await site.stack.until(is_named)
    assert "noeviction" in (await site.check_refuses()).json()["error"]["message"]
    site.server.client.config_set("maxmemory-policy", "noeviction")


async def test_12_no_role_starts_on_a_server_that_evicts(site: Site) -> None:
    site.server.client.config_set("maxmemory-policy", "volatile-ttl")
    try:
        roles = [site.stack.start("api", port=0), site.stack.start("worker", model="demo")]
        assert [await role.wait() for role in roles] == [2, 2]
    finally:
        site.server.client.config_set("maxmemory-policy", "noeviction")
    for role in roles:
        assert "maxmemory-policy 'volatile-ttl'" in role.log and "set maxmemory-policy to noeviction" in role.log


async def test_13_a_full_disk_stops_new_jobs_until_there_is_room(site: Site) -> None:
    reading = await start_reading(site)
    site.server.fill_disk()
    assert "MISCONF" in (await site.check_refuses()).json()["error"]["message"]
    site.server.free_disk()
    await reading.check_whole()


@pytest.mark.slow
async def test_15_a_slow_network_costs_no_lease(site: Site) -> None:
    site.network.delay_s = 0.1
    try:
        jobs = [await make_job(site.stack, ask(n_predict=LONG, seed=n)) for n in range(N_AT_ONCE)]
        ended = await finished(site, jobs)
        assert await site.status("/health") == 200
    finally:
        site.network.delay_s = 0.0
    assert [(job["status"], job["attempts"]) for job in ended] == [("succeeded", 1)] * N_AT_ONCE


BUSY_MS = 2000
BUSY = f"""
local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end
local began = now()
while now() - began < {BUSY_MS} do end
"""


@pytest.mark.slow
@pytest.mark.parametrize("threshold_ms", [100, 5000])
async def test_15_a_script_that_holds_the_server_costs_no_lease(site: Site, threshold_ms: int) -> None:
    """Below the threshold the server is silent, above it says BUSY to everybody."""
    reading = await start_reading(site)
    site.server.client.config_set("busy-reply-threshold", threshold_ms)
    await asyncio.to_thread(site.server.client.eval, BUSY, 0)
    assert (await reading.check_whole())["attempts"] == 1
    site.server.client.config_set("busy-reply-threshold", 5000)


async def test_16_a_primary_that_was_demoted_and_comes_back(site: Site) -> None:
    reading = await start_reading(site)
    site.server.client.replicaof("127.0.0.1", "1")
    try:
        assert "read only" in (await site.check_refuses()).json()["error"]["message"]
    finally:
        site.server.client.replicaof("NO", "ONE")
    await reading.check_whole()


@pytest.mark.slow
async def test_16_a_server_that_is_loading_is_waited_for(site: Site) -> None:
    client = site.server.client
    for number in range(800):
        client.set(f"ballast:{number}", "x" * 1000, ex=600)
    client.bgrewriteaof()  # else it would also load everything that other tests have said
    while client.info("persistence")["aof_rewrite_in_progress"]:  # noqa: ASYNC110 - it sets no event here
        await asyncio.sleep(0.01)
    reading = await start_reading(site)
    site.server.stop()
    site.server.start(key_load_delay=5_000, loading_process_events_interval_bytes=1024)
    assert client.info("persistence")["loading"]
    await site.check_refuses()
    assert client.info("persistence")["loading"]
    await reading.check_whole()
