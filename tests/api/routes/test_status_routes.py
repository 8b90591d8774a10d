"""Health, readiness, models and slots."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from shared.bus import Bus, SlotState, open_bus
from shared.errors import BusUnavailable
from shared.jobs import Generation, Sampling
from shared.settings import ApiSettings
from tests.api.conftest import Api, RedisProcess, serve
from tests.api.scripted_worker import ScriptedWorker, card


async def test_a_served_model_is_healthy(api: Api) -> None:
    for path in ("/health", "/v1/health"):
        response = await api.client.get(path)
        assert response.status_code == 200
        assert response.json() == {"status": "ok", "slots_idle": 4, "slots_processing": 0}
        asked = await api.client.head(path)
        assert (asked.status_code, asked.content) == (200, b"")
    assert len((await api.client.get("/health?include_slots=1")).json()["slots"]) == 4


async def test_without_a_worker_there_is_no_health_but_readiness(settings: ApiSettings) -> None:
    async with serve(settings) as api:
        response = await api.client.get("/health")
        assert response.status_code == 503 and "retry-after" in response.headers
        assert response.json()["status"] == "no worker"
        assert response.json()["error"]["type"] == "unavailable_error"
        assert (await api.client.get("/ready")).status_code == 200
        assert (await api.client.get("/live")).status_code == 200


async def test_a_loading_model_is_told_with_its_progress(settings: ApiSettings, bus: Bus) -> None:
    await ScriptedWorker(bus).announce("loading", progress=0.4)
    await ScriptedWorker(bus, worker_id="w2").announce("loading", progress=0.3)
    async with serve(settings) as api:
        response = await api.client.get("/health")
    assert response.status_code == 503
    body = response.json()
    assert (body["status"], body["progress"], body["error"]["message"]) == ("loading model", 0.4, "Loading model")


async def test_a_model_that_is_fetched_is_told_with_the_last_trouble(settings: ApiSettings, bus: Bus) -> None:
    stage = "it is being fetched; the hub cannot be reached"
    await ScriptedWorker(bus).announce("loading", progress=0.1, stage=stage)
    async with serve(settings) as api:
        body = (await api.client.get("/health")).json()
        assert (body["status"], body["error"]["message"]) == ("loading model", f"Loading model: {stage}")
        made = await api.client.post("/v1/jobs", json={"endpoint": "/completion", "body": {"prompt": "say b"}})
        assert made.json()["waiting_for"] == f"the model, which is loaded to 10%: {stage}"


async def test_a_failure_is_no_news_once_somebody_loads_the_model(settings: ApiSettings, bus: Bus) -> None:
    await ScriptedWorker(bus).announce("failed", failure="there is no such model")
    with capture_logs() as lines:
        async with serve(settings) as api:
            assert (await api.client.get("/health")).json()["status"] == "load failed"
            mended = ScriptedWorker(bus, worker_id="w2")
            await mended.announce("loading")
            await until_health(api, 503, "loading model")
            await mended.announce("ready")
            await until_health(api, 200)
    assert [line["workers"] for line in lines if line["event"] == "jobs are taken"] == [0]


@pytest.mark.parametrize(
    ("more", "capabilities"),
    [
        ({}, ["completion"]),
        ({"pooling": "mean"}, ["completion"]),
        ({"has_vision": True}, ["completion", "multimodal"]),
        ({"can_generate": False, "pooling": "cls"}, ["embedding"]),
        ({"can_generate": False, "pooling": "rank"}, ["rerank"]),
    ],
)
async def test_a_model_says_what_it_can_do(
    settings: ApiSettings, bus: Bus, more: dict[str, Any], capabilities: list[str]
) -> None:
    async with ScriptedWorker(bus, **more), serve(settings) as api:
        [listed] = (await api.client.get("/v1/models")).json()["models"]
    assert listed["capabilities"] == capabilities


async def test_who_waits_for_a_model_that_cannot_be_loaded_hears_why(settings: ApiSettings, bus: Bus) -> None:
    worker = ScriptedWorker(bus)
    await worker.announce("loading", progress=0.5)
    async with serve(settings) as api:
        asking = asyncio.create_task(api.client.post("/completion", json={"prompt": "say a"}))
        made = await api.client.post("/v1/jobs", json={"endpoint": "/completion", "body": {"prompt": "say b"}})
        job = made.json()
        assert job["waiting_for"] == "the model, which is loaded to 50%"
        await worker.announce("failed", failure="there is no such model")
        asked = await asking
        assert (asked.status_code, asked.json()["error"]["message"]) == (503, "there is no such model")
        health = await api.client.get("/health")
        assert (health.json()["status"], health.json()["error"]["message"]) == ("load failed", "there is no such model")
        [listed] = (await api.client.get("/v1/jobs?status=queued")).json()["data"]
        assert listed["waiting_for"] == "a worker; the last one could not start: there is no such model"
        async with ScriptedWorker(bus, worker_id="w2"):
            await until_health(api, 200)
            await api.client.get(f"/v1/jobs/{job['id']}/events")
            ended = (await api.client.get(f"/v1/jobs/{job['id']}")).json()
            assert (ended["status"], ended["waiting_for"]) == ("succeeded", None)


async def test_every_name_of_a_model_means_it(settings: ApiSettings, bus: Bus) -> None:
    named = card("first").model_copy(update={"aliases": ("second", "third")})
    async with ScriptedWorker(bus, model="first") as worker, ScriptedWorker(bus, model="other", worker_id="w2"):
        await worker.announce("ready", model=named)
        async with serve(settings) as api:
            for name in ("first", "second", "third"):
                body = {"prompt": "say a", "model": name}
                assert (await api.client.post("/completion", json=body)).status_code == 200
            shown = {each["id"]: each["aliases"] for each in (await api.client.get("/v1/models")).json()["data"]}
            assert shown == {"first": ["first", "second", "third"], "other": ["other"]}
            refused = await api.client.post("/completion", json={"prompt": "say a", "model": "fourth"})
            assert refused.status_code == 404


async def test_nobody_can_work_for_a_server_that_never_had_a_model(settings: ApiSettings) -> None:
    async with serve(settings) as api:
        response = await api.client.post("/completion", json={"prompt": "say a"})
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "No worker has served a model yet"
    assert int(response.headers["retry-after"]) >= 1


async def test_health_is_quick_and_comes_back_when_redis_does() -> None:
    with tempfile.TemporaryDirectory(prefix="ss") as folder, RedisProcess(Path(folder)) as redis:
        settings = ApiSettings(redis_url=SecretStr(redis.url))
        async with (
            serve(settings) as api,
            open_bus(settings, name="test") as bus,
            ScriptedWorker(bus) as worker,
        ):
            assert (await api.client.get("/health")).status_code == 200
            redis.stop()
            await until_health(api, 503)
            started = time.monotonic()
            response = await api.client.get("/health")
            assert time.monotonic() - started < 0.5
            assert response.json()["status"] == "redis unavailable"
            assert (await api.client.get("/ready")).status_code == 503
            assert (await api.client.get("/live")).status_code == 200
            asked = await api.client.post("/completion", json={"prompt": "say a"})
            assert asked.status_code == 503 and "retry-after" in asked.headers
            redis.start()
            await until_health(api, 503, "no worker")
            await back_again(worker)
            await until_health(api, 200)
            assert (await api.client.get("/ready")).status_code == 200


async def back_again(worker: ScriptedWorker) -> None:
    """A worker announces itself every few seconds; what fails once is said again."""
    async with asyncio.timeout(10):
        while True:
            try:
                await worker.announce("ready")
            except BusUnavailable:
                continue
            return


async def until_health(api: Api, status: int, said: str | None = None) -> None:
    async with asyncio.timeout(20):
        while True:
            response = await api.client.get("/health")
            if response.status_code == status and said in (None, response.json()["status"]):
                return


async def test_slots_are_numbered_over_workers(settings: ApiSettings, bus: Bus) -> None:
    await ScriptedWorker(bus, worker_id="a", n_slots=2).announce("ready", n_busy=1)
    await ScriptedWorker(bus, worker_id="b", n_slots=3).announce("ready")
    async with serve(settings) as api:
        slots = (await api.client.get("/slots")).json()
        assert [slot["id"] for slot in slots] == [0, 1, 2, 3, 4]
        assert [slot["is_processing"] for slot in slots] == [True, False, False, False, False]
        assert [slot["worker"] for slot in slots] == ["a", "a", "b", "b", "b"]
        assert slots[0]["next_token"][0]["n_remain"] == -1
        assert (await api.client.get("/slots?fail_on_no_slot=1")).status_code == 200


async def test_a_slot_tells_how_its_text_is_made_under_the_names_of_both_generations(
    settings: ApiSettings, bus: Bus
) -> None:
    asked = Generation(n_predict=7, sampling=Sampling(temperature=0.5, top_k=3))
    busy = SlotState(id=0, is_processing=True, n_ctx=64, job_id="job_0_secret", n_remain=4, n_decoded=3, asked=asked)
    await ScriptedWorker(bus).announce("ready", slots=[busy, SlotState(id=1, is_processing=False, n_ctx=64)])
    async with serve(settings) as api:
        response = await api.client.get("/slots")
        told, fresh = response.json()
        assert "secret" not in response.text and told["id_task"] >= 0
        expected = {"n_predict": 7, "temperature": 0.5, "top_k": 3, "seed": 0xFFFFFFFF, "top_p": 0.95}
        assert told.items() >= expected.items() and told["params"].items() >= expected.items()
        assert told["next_token"] == [
            {"has_next_token": True, "has_new_line": False, "n_remain": 4, "n_decoded": 3},
        ]
        assert (told["state"], told["is_processing"]) == (1, True)
        assert not told.keys() & {"stop", "grammar", "logit_bias", "dry_sequence_breakers", "prompt"}
        assert "params" not in fresh and fresh["id_task"] == -1
        assert (fresh["state"], fresh["next_token"][0]["n_remain"], fresh["next_token"][0]["n_decoded"]) == (0, -1, 0)


async def test_a_full_house_fails_when_asked_to(settings: ApiSettings, bus: Bus) -> None:
    await ScriptedWorker(bus, n_slots=2).announce("ready", n_busy=2)
    async with serve(settings) as api:
        assert (await api.client.get("/slots")).status_code == 200
        for path in ("/slots?fail_on_no_slot=1", "/health?fail_on_no_slot=1"):
            response = await api.client.get(path)
            assert response.status_code == 503 and "retry-after" in response.headers
        assert (await api.client.get("/health")).json()["slots_idle"] == 0


async def test_the_model_is_listed(api: Api) -> None:
    for path in ("/v1/models", "/models"):
        body = (await api.client.get(path)).json()
        (model,) = body["data"]
        assert (model["id"], model["object"], model["owned_by"]) == ("tiny", "model", "llamacpp")
        assert model["meta"]["n_ctx_train"] == 64


async def test_one_model_answers_to_any_name_and_several_only_to_theirs(
    settings: ApiSettings, bus: Bus, worker: ScriptedWorker
) -> None:
    async with serve(settings) as api:
        ask = {"prompt": "say a", "model": "gpt-4"}
        assert (await api.client.post("/completion", json=ask)).json()["model"] == "tiny"
        async with ScriptedWorker(bus, model="other", worker_id="w2") as other:
            while len((await api.client.get("/v1/models")).json()["data"]) < 2:
                await api.client.get("/slots")
            for body in (ask, {"prompt": "say a"}):
                response = await api.client.post("/v1/completions", json=body)
                assert response.status_code == 404
                assert response.json()["error"]["type"] == "model_not_found"
                assert response.json()["error"]["param"] == "model"
            named = await api.client.post("/completion", json={"prompt": "say a", "model": "other"})
            assert named.json()["model"] == "other" and len(other.taken) == 1


async def test_the_model_that_is_being_loaded_answers_to_any_name_whatever_was_served_before(
    settings: ApiSettings, bus: Bus
) -> None:
    await ScriptedWorker(bus, model="before", worker_id="w1").announce("ready")
    await bus.presence.leave("w1")
    await ScriptedWorker(bus, model="now", worker_id="w2").announce("loading", progress=0.5)
    async with serve(settings) as api:
        assert [model["id"] for model in (await api.client.get("/v1/models")).json()["data"]] == ["now"]
        job = (await api.client.post("/v1/jobs", json={"endpoint": "/completion", "body": {"prompt": "say a"}})).json()
        assert job["model"] == "now"


async def test_a_name_that_never_could_be_loaded_stands_in_nobody_s_way(settings: ApiSettings, bus: Bus) -> None:
    mistyped = ScriptedWorker(bus, model="mistyped", worker_id="w1", n_vocab=0)
    await mistyped.announce("failed", failure="no such file")
    async with serve(settings) as api:
        assert [model["id"] for model in (await api.client.get("/v1/models")).json()["data"]] == ["mistyped"]
    await ScriptedWorker(bus, worker_id="w2").announce("ready")
    await bus.presence.leave("w2")
    async with serve(settings) as api:
        assert [model["id"] for model in (await api.client.get("/v1/models")).json()["data"]] == ["tiny"]


async def test_a_model_whose_workers_are_away_is_not_answered_for_by_another(
    settings: ApiSettings, bus: Bus, worker: ScriptedWorker
) -> None:
    await ScriptedWorker(bus, model="away", worker_id="w2").announce("ready")
    await bus.presence.leave("w2")
    async with serve(settings) as api:
        asked = {"prompt": "say a", "model": "away"}
        response = await api.client.post("/completion", json=asked)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        job = (await api.client.post("/v1/jobs", json={"endpoint": "/completion", "body": asked})).json()
        assert (job["model"], job["status"]) == ("away", "queued")
        await api.client.post(f"/v1/jobs/{job['id']}/cancel")
    assert worker.taken == []


async def test_a_model_whose_workers_are_away_is_meant_by_all_of_its_names(
    settings: ApiSettings, bus: Bus, worker: ScriptedWorker
) -> None:
    away = ScriptedWorker(bus, model="away", worker_id="w2")
    await away.announce("ready", model=card("away").model_copy(update={"aliases": ("absent",)}))
    await bus.presence.leave("w2")
    async with serve(settings) as api:
        assert (await api.client.post("/completion", json={"prompt": "say a", "model": "absent"})).status_code == 503
    assert worker.taken == []


async def test_a_worker_that_was_renamed_is_found_by_the_name_that_it_keeps(settings: ApiSettings, bus: Bus) -> None:
    await ScriptedWorker(bus, model="old", worker_id="w1").announce("ready")
    await bus.presence.leave("w1")
    async with ScriptedWorker(bus, model="new", worker_id="w2") as renamed:
        await renamed.announce("ready", model=card("new").model_copy(update={"aliases": ("old",)}))
        async with serve(settings) as api:
            response = await api.client.post("/completion", json={"prompt": "say a", "model": "old"})
    assert (response.status_code, response.json()["model"]) == (200, "new")
