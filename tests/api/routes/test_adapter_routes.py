"""LoRA adapters over HTTP, against a real queue and scripted workers."""

from __future__ import annotations

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
