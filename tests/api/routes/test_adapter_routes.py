"""LoRA adapters over HTTP, against a real queue and scripted workers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from shared.bus import AdapterCard, Bus
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker


def adapters(*scales: float, set_at: float = 0.0) -> dict[str, Any]:
    """Of a model's card."""
    cards = tuple(AdapterCard(path=f"/a/{place}.gguf", scale=scale) for place, scale in enumerate(scales))
    return {"adapters": cards, "adapters_set_at": set_at}


async def test_adapters_are_listed_with_the_scales_that_were_set_last(settings: ApiSettings, bus: Bus) -> None:
    async with (
        ScriptedWorker(bus, worker_id="w1", **adapters(1.0, 0.5)),
        ScriptedWorker(bus, worker_id="w2", **adapters(0.0, 2.0, set_at=7.0)),
        serve(settings) as api,
    ):
        response = await api.client.get("/lora-adapters")
    assert response.json() == [
        {"id": 0, "path": "/a/0.gguf", "scale": 0.0, "task_name": "", "prompt_prefix": ""},
        {"id": 1, "path": "/a/1.gguf", "scale": 2.0, "task_name": "", "prompt_prefix": ""},
    ]


async def test_a_model_without_adapters_has_an_empty_list(api: Api) -> None:
    assert (await api.client.get("/lora-adapters")).json() == []


@pytest.mark.parametrize(("query", "status"), [("?model=other", 404), ("?model=one", 200), ("", 404), ("?id=1", 400)])
async def test_with_several_models_one_is_named(settings: ApiSettings, bus: Bus, query: str, status: int) -> None:
    async with (
        ScriptedWorker(bus, worker_id="w1", model="one", **adapters(1.0)),
        ScriptedWorker(bus, worker_id="w2", model="two"),
        serve(settings) as api,
    ):
        assert (await api.client.get(f"/lora-adapters{query}")).status_code == status


async def test_a_model_that_loads_has_no_list_yet(settings: ApiSettings, bus: Bus) -> None:
    await ScriptedWorker(bus).announce("loading")
    async with serve(settings) as api:
        response = await api.client.get("/lora-adapters")
    assert response.status_code == 503 and "retry-after" in response.headers


async def test_scales_are_set_on_every_worker_of_the_model(settings: ApiSettings, bus: Bus) -> None:
    async with (
        ScriptedWorker(bus, worker_id="w1", **adapters(1.0, 1.0)) as first,
        ScriptedWorker(bus, worker_id="w2", **adapters(1.0, 1.0)) as second,
        ScriptedWorker(bus, worker_id="w3", model="other") as other,
        serve(settings) as api,
    ):
        body = [{"id": 1, "scale": 0.5}]
        response = await api.client.post("/lora-adapters?model=tiny", json=body)
        assert (response.status_code, response.json()) == (200, {"success": True})
        assert (first.scales, second.scales, other.scales) == ((0.5,), (0.5,), None)
        assert (await api.client.post("/lora-adapters?model=tiny", json=[])).json() == {"success": True}
        assert (first.scales, second.scales) == ((), ())


async def test_all_workers_are_told_one_time_which_is_later_than_any_that_was_told(
    settings: ApiSettings, bus: Bus
) -> None:
    ahead = time.time() + 3600
    async with (
        ScriptedWorker(bus, worker_id="w1", **adapters(1.0)) as first,
        ScriptedWorker(bus, worker_id="w2", **adapters(1.0, set_at=ahead)) as second,
        serve(settings) as api,
    ):
        assert (await api.client.post("/lora-adapters", json=[])).json() == {"success": True}
    assert first.scales_set_at == second.scales_set_at > ahead


BAD_BODIES: list[tuple[bytes, str]] = [
    (b"{}", "must be a JSON array"),
    (b'"x"', "must be a JSON array"),
    (b"[", "not valid JSON"),
    (b"[" * 100 + b"]" * 100, "nested too deeply"),
    (b"[1]", "Field '[0]"),
    (b"[{}]", "Field '[0].id"),
    (b'[{"id": 0}]', "Field '[0].scale"),
    (b'[{"id": 0, "scale": NaN}]', "NaN"),
    (b'[{"id": 0, "scale": 101}]', "Field '[0].scale"),
    (b'[{"id": 0, "scale": -3e38}]', "Field '[0].scale"),
    (b'[{"id": 0, "scale": true}]', "Field '[0].scale"),
    (b'[{"id": -1, "scale": 1}]', "Field '[0].id"),
    (b'[{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]', "Field '[1].id': there is no adapter 1: there is 1, from 0 on"),
]


async def test_what_is_no_list_of_scales_changes_nothing(settings: ApiSettings, bus: Bus) -> None:
    async with (
        ScriptedWorker(bus, worker_id="w1", **adapters(1.0, 1.0)) as first,
        ScriptedWorker(bus, worker_id="w2", **adapters(1.0)) as second,
        serve(settings) as api,
    ):
        for body, told in BAD_BODIES:
            response = await api.client.post("/lora-adapters", content=body)
            assert response.status_code == 400 and told in response.json()["error"]["message"], (body, response.text)
    assert (first.scales, second.scales) == (None, None)


async def test_a_worker_that_goes_before_it_was_told_is_a_503(settings: ApiSettings, bus: Bus) -> None:
    """It says that it leaves, and the next look of its neighbour settles what was meant for it."""
    gone = ScriptedWorker(bus, worker_id="w2", **adapters(1.0))
    await gone.announce("ready")
    async with ScriptedWorker(bus, worker_id="w1", **adapters(1.0)) as left, serve(settings) as api:
        asking = asyncio.create_task(api.client.post("/lora-adapters", json=[{"id": 0, "scale": 2}]))
        await left.has_taken(1)
        await bus.presence.leave("w2")
        await bus.queue.leave("w2", "tiny")
        response = await asking
        assert response.status_code == 503 and "retry-after" in response.headers
        assert "gone" in response.json()["error"]["message"]
        again = await api.client.post("/lora-adapters", json=[{"id": 0, "scale": 3}])
    assert again.json() == {"success": True} and left.scales == (3.0,)


async def test_a_model_without_adapters_says_how_it_gets_some(api: Api) -> None:
    response = await api.client.post("/lora-adapters", json=[{"id": 0, "scale": 1}])
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "Field '[0].id': this worker has no adapters (`--lora` loads them)"
