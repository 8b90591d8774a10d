"""What Prometheus reads."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families as families_of

from shared.bus import Bus, Recent
from shared.jobs import Completion, Job, Lane
from shared.settings import ApiSettings
from shared.work import Work
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker

COUNTERS = {
    *("prompt_tokens_total", "prompt_tokens_cached_total", "prompt_seconds_total", "tokens_predicted_total"),
    *("tokens_predicted_seconds_total", "n_decode_total", "n_tokens_max", "spec_decode_num_draft_tokens_total"),
    *("spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total"),
}
GAUGES = {
    *("prompt_tokens_seconds", "predicted_tokens_seconds", "requests_processing", "requests_deferred"),
    *("n_busy_slots_per_decode", "kv_cache_usage_ratio", "kv_cache_tokens"),
}


async def scrape(api: Api) -> dict[str, float]:
    """By name and labels, as Prometheus's own parser reads it; it wants `_total` at the end of every counter."""
    response = await api.client.get("/metrics")
    assert response.status_code == 200, response.text
    samples = [sample for family in families_of(response.text) for sample in family.samples]
    assert all(math.isfinite(sample.value) for sample in samples)
    names = [sample.name.replace("n_tokens_max_total", "n_tokens_max") for sample in samples]
    return {
        " ".join((name, *sample.labels.values())): sample.value for name, sample in zip(names, samples, strict=True)
    }


def described(response: httpx.Response, what: str) -> list[tuple[str, str]]:
    lines = [line.split(" ", 3) for line in response.text.split("\n") if line.startswith(f"# {what} llamacpp:")]
    return [(name.removeprefix("llamacpp:"), text) for _, _, name, text in lines]


async def test_a_fresh_server_tells_all_of_llama_cpps_names_once_and_nothing_that_is_no_number(api: Api) -> None:
    response = await api.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert int(response.headers["process-start-time-unix"]) > 1_600_000_000
    types = described(response, "TYPE")
    assert sorted(types) == sorted([*((name, "counter") for name in COUNTERS), *((name, "gauge") for name in GAUGES)])
    assert [name for name, _ in described(response, "HELP")] == [name for name, _ in types]
    told = await scrape(api)
    assert {name for name in told if name.startswith("llamacpp:")} == {f"llamacpp:{name}" for name, _ in types}
    assert {told[f"llamacpp:{name}"] for name in COUNTERS | GAUGES} == {0}
    assert (told["slotstream_workers tiny"], told["slotstream_slots tiny idle"]) == (1, 4)


async def test_all_workers_of_all_models_are_counted_together(settings: ApiSettings, bus: Bus) -> None:
    done = Work(n_prompt_tokens=100, prompt_s=2.0, n_decodes=10, n_busy_slots=25, n_tokens_most=70, n_begun=2)
    recent = Recent(prompt_tokens=30, prompt_s=1.5, predicted_tokens=8, predicted_s=4.0)
    for name, model in (("w1", "tiny"), ("w2", "tiny"), ("w3", 'an "other"\n')):
        worker = ScriptedWorker(bus, model=model, worker_id=name)
        await worker.announce("ready", n_busy=1, recent=recent, n_cells=100, n_cells_used=25, n_waiting=2)
        await bus.tally.say(name, model, done)
    async with serve(settings) as api:
        told = await scrape(api)
        assert told["llamacpp:prompt_tokens_total"] == 300
        assert told["llamacpp:n_tokens_max"] == 70
        assert told["llamacpp:n_busy_slots_per_decode"] == 2.5
        assert told["llamacpp:prompt_tokens_seconds"] == 20
        assert told["llamacpp:predicted_tokens_seconds"] == 2
        assert (told["llamacpp:requests_processing"], told["llamacpp:requests_deferred"]) == (3, 6)
        assert (told["llamacpp:kv_cache_usage_ratio"], told["llamacpp:kv_cache_tokens"]) == (0.25, 75)
        assert told["slotstream_sequences_begun_total tiny"] == 4
        assert told['slotstream_sequences_begun_total an "other"\n'] == 2


async def test_counts_stay_when_workers_come_and_go(settings: ApiSettings, bus: Bus) -> None:
    async with serve(settings) as api:
        for number in (1, 2):
            async with ScriptedWorker(bus, worker_id=f"w{number}"):
                await bus.tally.say(f"w{number}", "tiny", Work(n_predicted_tokens=5, n_decodes=5))
                assert (await scrape(api))["llamacpp:tokens_predicted_total"] == 5 * number
            assert (await scrape(api))["llamacpp:tokens_predicted_total"] == 5 * number
        assert (await scrape(api))["slotstream_workers tiny"] == 0


async def test_what_waits_in_the_queue_is_deferred(settings: ApiSettings, bus: Bus) -> None:
    await ScriptedWorker(bus).announce("ready")
    for lane in (Lane.BULK, Lane.BULK, Lane.INTERACTIVE):
        request = Completion(prompts=("a",))
        await bus.queue.enqueue(Job(id=bus.queue.new_job_id(), model="tiny", request=request, lane=lane))
    async with serve(settings) as api:
        told = await scrape(api)
        assert told["llamacpp:requests_deferred"] == 3
        assert told["slotstream_jobs_queued tiny bulk"] == 2
        assert told["slotstream_jobs_queued tiny interactive"] == 1


async def test_scrapes_do_not_disturb_each_other(api: Api, bus: Bus, worker: ScriptedWorker) -> None:
    recent = Recent(predicted_tokens=8, predicted_s=4.0)
    await worker.announce("ready", recent=recent)
    told = await asyncio.gather(*(scrape(api) for _ in range(4)))
    assert [each["llamacpp:predicted_tokens_seconds"] for each in told] == [2.0] * 4


async def test_a_server_that_does_not_count_says_so(settings: ApiSettings, worker: ScriptedWorker) -> None:
    told: dict[str, Any]
    async with serve(settings.model_copy(update={"metrics": False, "slots": False})) as api:
        for path in ("/metrics", "/slots"):
            response = await api.client.get(path)
            assert (response.status_code, response.json()["error"]["type"]) == (501, "not_supported_error")
        told = (await api.client.get("/props")).json()
    assert (told["endpoint_metrics"], told["endpoint_slots"]) == (False, False)
