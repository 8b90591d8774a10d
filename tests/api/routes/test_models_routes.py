"""One model by its name."""

from __future__ import annotations

import pytest

from shared.bus import Bus
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker, card


@pytest.mark.parametrize("name", ["tiny", "org/model:Q4_K_M", "a b", "ключ"])
async def test_a_model_is_found_by_its_name_as_it_is_listed(settings: ApiSettings, bus: Bus, name: str) -> None:
    async with ScriptedWorker(bus, model=name), serve(settings) as api:
        [listed] = (await api.client.get("/v1/models")).json()["data"]
        found = await api.client.get(f"/v1/models/{name}")
    assert (found.status_code, found.json()) == (200, listed)
    assert found.json()["id"] == name


async def test_a_model_is_found_by_any_of_its_names(settings: ApiSettings, bus: Bus) -> None:
    async with ScriptedWorker(bus, model="first") as worker:
        await worker.announce("ready", model=card("first").model_copy(update={"aliases": ("my/second",)}))
        async with serve(settings) as api:
            for name in ("first", "first:latest", "my/second", "my/second:latest"):
                assert (await api.client.get(f"/v1/models/{name}")).json()["id"] == "first"


@pytest.mark.parametrize("name", ["other", "tiny/", "TINY", "tiny/x", "%00"])
async def test_another_name_is_not_found_though_a_request_may_use_any(api: Api, name: str) -> None:
    response = await api.client.get(f"/v1/models/{name}")
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (404, "model_not_found", "model")


async def test_nothing_is_found_where_nothing_is_served(settings: ApiSettings) -> None:
    async with serve(settings) as api:
        response = await api.client.get("/v1/models/tiny")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "Model 'tiny' is not served"
