"""What a server serves and how."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api import profiles
from shared.bus import Bus
from shared.events import Properties
from shared.jobs import Compat
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker

TODAY = {
    *("default_generation_settings", "total_slots", "model_alias", "model_ftype", "model_path", "modalities"),
    *("media_marker", "endpoint_slots", "endpoint_props", "endpoint_metrics", "ui", "ui_settings", "chat_template"),
    *("chat_template_caps", "bos_token", "eos_token", "build_info", "is_sleeping", "cors_proxy_enabled"),
}
OF_2024 = {"user_name", "assistant_name", "default_generation_settings", "total_slots"}


async def props(api: Api, query: str = "") -> dict[str, Any]:
    response = await api.client.get(f"/props{query}")
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()
    return told


async def test_all_names_of_both_generations_are_told(settings: ApiSettings, bus: Bus) -> None:
    async with ScriptedWorker(bus, eos_token="</s>", ftype="Q4_1", has_vision=True) as worker, serve(settings) as api:
        worker.properties = Properties(chat_template="{{ messages }}", chat_template_caps={"supports_tools": True})
        told = await props(api)
        assert told.keys() == TODAY | OF_2024
        assert (told["model_path"], told["model_alias"], told["model_ftype"]) == ("tiny.gguf", "tiny", "Q4_1")
        assert (told["total_slots"], told["eos_token"]) == (4, "</s>")
        assert told["chat_template_caps"] == {"supports_tools": True}
        assert told["modalities"] == {"vision": True, "video": False, "audio": False}
        assert told["build_info"].startswith("b")
        assert (told["endpoint_slots"], told["endpoint_props"], told["endpoint_metrics"]) == (True, False, True)


@pytest.mark.parametrize("compat", Compat)
async def test_the_defaults_are_those_that_an_answer_is_made_with(
    settings: ApiSettings, worker: ScriptedWorker, compat: Compat
) -> None:
    async with serve(settings.model_copy(update={"compat": compat})) as api:
        defaults = (await props(api))["default_generation_settings"]
        answered = (await api.client.post("/completion", json={"prompt": "say a"})).json()["generation_settings"]
    flat = {name: value for name, value in defaults.items() if name not in ("params", "n_ctx")}
    assert (defaults["n_ctx"], defaults["params"]) == (64, flat)
    assert flat | {"n_ctx": answered["n_ctx"]} == answered | {"seed": 0xFFFFFFFF}


async def test_a_template_of_its_own_for_tools_is_told(settings: ApiSettings, bus: Bus) -> None:
    async with ScriptedWorker(bus) as worker, serve(settings) as api:
        worker.properties = Properties(tool_template="{{ tools }}")
        assert (await props(api))["chat_template_tool_use"] == "{{ tools }}"


async def test_a_worker_is_asked_once_however_many_ask(api: Api, worker: ScriptedWorker) -> None:
    await asyncio.gather(*(props(api) for _ in range(5)))
    assert len(worker.taken) == 1


async def test_another_worker_is_asked_when_the_one_that_answered_has_gone(settings: ApiSettings, bus: Bus) -> None:
    async with serve(settings) as api:
        for name in ("w1", "w2"):
            async with ScriptedWorker(bus, worker_id=name) as worker:
                worker.properties = Properties(chat_template=name)
                await api.client.get("/slots")  # which looks who is there
                assert (await props(api))["chat_template"] == name


async def test_of_several_models_one_must_be_named(settings: ApiSettings, bus: Bus, worker: ScriptedWorker) -> None:
    async with ScriptedWorker(bus, model="other", worker_id="w2", n_slots=2), serve(settings) as api:
        assert (await api.client.get("/props")).status_code == 404
        told = await props(api, "?model=other")
        assert (told["model_alias"], told["total_slots"]) == ("other", 2)
        assert (await props(api, "?model=tiny&autoload=false"))["total_slots"] == 4


async def test_nothing_is_told_of_a_model_that_is_being_loaded(settings: ApiSettings, bus: Bus) -> None:
    await ScriptedWorker(bus).announce("loading", progress=0.4)
    async with serve(settings) as api:
        response = await api.client.get("/props")
        assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")
        assert response.json()["error"]["message"] == "Loading model"
        assert "retry-after" in response.headers


async def test_nobody_waits_for_a_worker_that_does_not_answer(
    settings: ApiSettings, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "ANSWER_S", 0.1)
    await ScriptedWorker(bus).announce("ready")
    async with serve(settings) as api:
        response = await api.client.get("/props")
        assert (response.status_code, "retry-after" in response.headers) == (503, True)


async def test_nothing_can_be_changed_for_all(api: Api) -> None:
    response = await api.client.post("/props", json={"chat_template": "x"})
    assert (response.status_code, response.json()["error"]["type"]) == (501, "not_supported_error")
