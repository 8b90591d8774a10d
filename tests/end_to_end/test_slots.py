"""Slots over HTTP: one of a client's choice, and what it has in the cache kept in a file. llama.cpp's own tests of its
server do the same."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
from pathlib import Path
from typing import Any

import pytest

from shared.bus import open_bus
from tests.end_to_end.asking import answer, post, refusal
from tests.stack import Stack, ask

N_LONG = 2000
"""Tokens of a text that is still being written when its worker leaves."""

shared = pytest.mark.asyncio(loop_scope="session")


def fresh() -> str:
    """A prompt that nobody has asked about."""
    return f"{secrets.token_hex(16)} is what nobody has said before"


async def said(stack: Stack, prompt: str, slot: int, **more: Any) -> dict[str, Any]:
    return await answer(stack, ask(prompt, id_slot=slot, temperature=0, **more))


async def act(stack: Stack, slot: int, action: str, **body: Any) -> dict[str, Any]:
    response = await post(stack, f"/slots/{slot}?action={action}", body)
    assert response.status_code == 200, response.text
    done: dict[str, Any] = response.json()
    return done


@shared
async def test_a_slot_is_kept_in_a_file_and_had_back_in_another(served: Stack) -> None:
    prompt = fresh()
    first = await said(served, prompt, 1)
    n_prompt = first["tokens_evaluated"]
    assert (first["id_slot"], first["timings"]["cache_n"]) == (1, 0)
    saved = await act(served, 1, "save", filename="slot1.bin")
    assert saved["n_saved"] == n_prompt + first["tokens_predicted"] - 1
    for slot in (1, 0):
        await act(served, slot, "erase")
    assert (await said(served, prompt, 2))["timings"]["cache_n"] == 0
    await act(served, 2, "erase")
    restored = await act(served, 0, "restore", filename="slot1.bin")
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    again = await said(served, prompt, 0)
    assert (again["timings"]["cache_n"], again["content"]) == (n_prompt - 1, first["content"])


@shared
async def test_what_was_erased_is_computed_anew(served: Stack) -> None:
    prompt = fresh()
    n_prompt = (await said(served, prompt, 1))["tokens_evaluated"]
    assert (await said(served, prompt, 1))["timings"]["prompt_n"] == 1
    assert (await act(served, 1, "erase"))["n_erased"] >= n_prompt
    # Another text in the cache may begin with the same letter.
    assert (await said(served, prompt, 1))["timings"]["prompt_n"] >= n_prompt - 2


@shared
async def test_a_file_that_is_not_there_or_not_whole_is_refused_and_the_slot_goes_on(
    served: Stack, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prompt = fresh()
    await said(served, prompt, 3)
    await act(served, 3, "save", filename="whole.bin")
    [whole] = {path.resolve() for path in tmp_path_factory.getbasetemp().glob("shared*/whole.bin")}
    damaged = bytearray(whole.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    whole.with_name("damaged.bin").write_bytes(damaged)
    for filename, why in (("nowhere.bin", "there is no such file"), ("damaged.bin", "its file is damaged")):
        error = await refusal(served, {"filename": filename}, "/slots/3?action=restore")
        assert error["message"] == f"Unable to restore slot: {why}"
    assert (await said(served, prompt, 3))["timings"]["prompt_n"] == 1


@shared
async def test_a_state_is_of_use_only_to_the_adapters_that_it_was_computed_with(served: Stack) -> None:
    prompt, adapted = fresh(), [{"id": 1, "scale": 2.0}]
    await said(served, prompt, 0, lora=adapted)
    await act(served, 0, "save", filename="adapted.bin")
    await act(served, 0, "erase")
    await act(served, 0, "restore", filename="adapted.bin")
    assert (await said(served, prompt, 0))["timings"]["cache_n"] == 0
    assert (await said(served, prompt, 0, lora=adapted))["timings"]["prompt_n"] == 1


@shared
async def test_choices_of_one_slot_never_wait_for_each_other(served: Stack) -> None:
    for _ in range(3):
        choices = await asyncio.gather(*(post(served, "/completion", ask(fresh(), n=2, id_slot=0)) for _ in range(3)))
        for response in choices:
            assert [each["index"] for each in response.json()] == [0, 1]
            assert response.json()[0]["id_slot"] == 0


@shared
async def test_all_who_want_one_slot_have_it_and_the_others_go_by(served: Stack) -> None:
    pinned = [said(served, fresh(), 2, n_predict=20) for _ in range(6)]
    others = [answer(served, ask(fresh(), n_predict=20)) for _ in range(6)]
    answers = await asyncio.gather(*pinned, *others)
    assert {each["id_slot"] for each in answers[:6]} == {2}


@pytest.mark.slow
async def test_what_runs_in_a_slot_of_a_worker_that_leaves_goes_on_elsewhere(
    stack: Stack, model: Path, tmp_path: Path
) -> None:
    """And what only that one could do ends with a word."""
    roles = {}
    for number in range(2):
        before = await stack.workers()
        folder = tmp_path / f"slots{number}"
        folder.mkdir()
        role = await stack.start_worker(model, ctx_size=8192, parallel=1, slot_save_path=folder)
        [worker] = await stack.workers() - before
        roles[worker] = role
    [_, second] = sorted(roles)
    streaming = asyncio.create_task(read_stream(stack, ask(n_predict=N_LONG, id_slot=1)))
    await stack.until(lambda: busy_workers(stack))
    assert await busy_workers(stack) == {second}
    deferred = asyncio.create_task(stack.http.post("/slots/1?action=save", json={"filename": "a"}))
    await stack.until(lambda: has_waiting(stack, second))
    roles[second].signal(signal.SIGTERM)
    chunks = await streaming
    assert await roles[second].wait() == 0
    assert sum(len(chunk["tokens"]) for chunk in chunks) == N_LONG
    assert chunks[-1]["stop"] and "error" not in chunks[-1]
    response = await deferred
    assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")


async def busy_workers(stack: Stack) -> set[str]:
    slots = (await stack.http.get("/slots")).json()
    return {slot["worker"] for slot in slots if slot["is_processing"]}


async def has_waiting(stack: Stack, worker: str) -> bool:
    """Whether something has come to a worker that cannot be done yet."""
    async with open_bus(stack.bus_settings, name="test") as bus:
        return any(each.id == worker and each.n_waiting for each in await bus.presence.workers())


async def read_stream(stack: Stack, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with stack.http.stream("POST", "/completion", json=body | {"stream": True}) as response:
        lines = [line async for line in response.aiter_lines()]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
