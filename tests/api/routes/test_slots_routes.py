"""Slots' files over HTTP: what a client may ask for, which worker it goes to, and what it hears."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from shared.bus import Bus
from shared.settings import ApiSettings
from tests.api.conftest import Api, serve
from tests.api.scripted_worker import ScriptedWorker


@pytest.fixture
async def first(bus: Bus) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(bus, worker_id="w1", n_slots=2, has_slot_files=True) as worker:
        yield worker


@pytest.fixture
async def second(bus: Bus) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(bus, worker_id="w2", n_slots=2, has_slot_files=True) as worker:
        yield worker


@pytest.fixture
async def api(settings: ApiSettings, first: ScriptedWorker, second: ScriptedWorker) -> AsyncIterator[Api]:
    async with serve(settings) as served:
        yield served


async def act(api: Api, slot: str, query: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    response = await api.client.post(f"/slots/{slot}{query}", json=body)
    return response.status_code, response.json()


async def test_a_slot_is_saved_restored_and_erased_by_the_worker_that_has_it(
    api: Api, first: ScriptedWorker, second: ScriptedWorker
) -> None:
    body = {"filename": "a.bin"}
    saved = {"id_slot": 3, "filename": "a.bin", "n_saved": 11, "n_written": 1000, "timings": {"save_ms": 1.5}}
    assert await act(api, "3", "?action=save", body) == (200, saved)
    restored = {"id_slot": 0, "filename": "a.bin", "n_restored": 10, "n_read": 1000, "timings": {"restore_ms": 1.5}}
    assert await act(api, "0", "?action=restore", body) == (200, restored)
    assert await act(api, "1", "?action=erase") == (200, {"id_slot": 1, "n_erased": 11})
    assert await act(api, "1", "?action=erase", {}) == (200, {"id_slot": 1, "n_erased": 11})
    assert (len(first.taken), len(second.taken)) == (3, 1)


NAME = {"filename": "a"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("abc", "?action=erase", None), "Invalid slot ID"),
        (("-1", "?action=erase", None), "Invalid slot ID"),
        (("1e2", "?action=erase", None), "Invalid slot ID"),
        (("٣", "?action=erase", None), "Invalid slot ID"),
        (("9" * 400, "?action=erase", None), "Invalid slot ID"),
        (("4", "?action=erase", None), "Invalid slot ID"),
        (("77", "?action=save", NAME), "Invalid slot ID"),
        (("0", "?action=foo", NAME), "Invalid action"),
        (("0", "", NAME), "Invalid action"),
        (("0", "?action=save", None), "Invalid filename"),
        (("0", "?action=save", {"filename": 5}), "Invalid filename"),
        (("0", "?action=save", {"filename": ""}), "Invalid filename"),
        (("0", "?action=restore", {"filename": "../x"}), "Invalid filename"),
        (("0", "?action=restore", {"filename": "a/b"}), "Invalid filename"),
        (("0", "?action=restore", {"filename": "a\0b"}), "Invalid filename"),
        (("0", "?action=save&action=erase", NAME), "Field 'action': is given twice"),
    ],
)
async def test_what_is_wrong_is_said_before_a_worker_hears_of_it(
    api: Api, first: ScriptedWorker, second: ScriptedWorker, asked: tuple[str, str, Any], message: str
) -> None:
    status, answer = await act(api, *asked)
    assert (status, answer["error"]["message"], answer["error"]["type"]) == (400, message, "invalid_request_error")
    assert not first.taken and not second.taken


async def test_without_a_folder_it_is_off_whatever_is_asked(settings: ApiSettings, worker: ScriptedWorker) -> None:
    async with serve(settings) as api:
        for slot, query in (("0", "?action=save"), ("abc", "?action=foo"), ("0", "?action=erase")):
            status, answer = await act(api, slot, query)
            assert (status, answer["error"]["type"]) == (501, "not_supported_error")
            assert "--slot-save-path" in answer["error"]["message"]
    assert not worker.taken


@pytest.mark.parametrize(
    ("status", "message"), [("loading", "Loading model"), ("draining", "No worker serves 'tiny' now")]
)
async def test_while_no_worker_is_ready_it_is_a_503(
    settings: ApiSettings, first: ScriptedWorker, status: str, message: str
) -> None:
    await first.announce(status)
    async with serve(settings) as api:
        answered, answer = await act(api, "0", "?action=erase")
    assert (answered, answer["error"]["message"]) == (503, message)


async def test_the_model_is_named_in_the_body_or_behind_the_path(
    settings: ApiSettings, bus: Bus, first: ScriptedWorker
) -> None:
    async with (
        ScriptedWorker(bus, model="other", worker_id="w3", n_slots=1, has_slot_files=True) as other,
        serve(settings) as api,
    ):
        assert (await act(api, "0", "?action=erase&model=other"))[1] == {"id_slot": 0, "n_erased": 10}
        assert (await act(api, "0", "?action=erase", {"model": "other"}))[0] == 200
        assert (await act(api, "0", "?action=erase"))[0] == 404
    assert (len(first.taken), len(other.taken)) == (0, 2)


async def test_it_is_only_for_who_posts(api: Api) -> None:
    assert (await api.client.get("/slots/0?action=erase")).status_code == 405
