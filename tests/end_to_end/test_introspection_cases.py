"""What a server tells of itself: cases 43 to 46 of llama.cpp's suite, and C48."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families as families_of

from tests.models import CHAT_TEMPLATE, write_byte_model
from tests.stack import LONG, Stack, ask, follow, make_job

pytestmark = pytest.mark.asyncio(loop_scope="session")

N_CTX, N_SLOTS = 16384, 2


class Fresh(NamedTuple):
    """A stack, and what it told before anybody asked for a text. A byte is a token."""

    stack: Stack
    model: Path
    slots: list[dict[str, Any]]
    metrics: dict[str, float]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fresh(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fresh]:
    folder = tmp_path_factory.mktemp("introspection")
    model = write_byte_model(folder / "bytes.gguf", n_ctx_train=N_CTX)
    stack = Stack(redis_url, folder)
    try:
        await stack.start_api()
        await start_worker(stack, model)
        yield Fresh(stack, model, await slots_of(stack), await metrics_of(stack))
    finally:
        await stack.close()


@pytest_asyncio.fixture(loop_scope="session")
async def stack(fresh: Fresh) -> Stack:
    """With nothing under way."""
    await fresh.stack.until(fresh.stack.is_idle)
    return fresh.stack


async def start_worker(stack: Stack, model: Path) -> None:
    await stack.start_worker(model, alias="tiny,first", ctx_size=N_CTX, parallel=N_SLOTS)


async def slots_of(stack: Stack, query: str = "") -> list[dict[str, Any]]:
    slots: list[dict[str, Any]] = (await stack.http.get(f"/slots{query}")).json()
    return slots


async def metrics_of(stack: Stack) -> dict[str, float]:
    response = await stack.http.get("/metrics")
    assert response.status_code == 200
    samples = [sample for family in families_of(response.text) for sample in family.samples if not sample.labels]
    return {sample.name.removeprefix("llamacpp:"): sample.value for sample in samples}


async def grown(stack: Stack, before: dict[str, float], expected: dict[str, float]) -> dict[str, float]:
    """How much the counts have grown, once that is as much as expected: a worker tells of them twice a second."""
    found: dict[str, float] = {}

    async def is_told() -> bool:
        now = await metrics_of(stack)
        found.update({name: now[name] - before[name] for name in now})
        return all(found[name] >= least for name, least in expected.items())

    await stack.until(is_told)
    return found


async def test_43_props_tell_what_is_served_and_how(stack: Stack) -> None:
    props = (await stack.http.get("/props")).json()
    assert props["total_slots"] == N_SLOTS
    assert props["default_generation_settings"]["n_ctx"] == N_CTX // N_SLOTS
    assert props["default_generation_settings"]["params"]["seed"] == 0xFFFFFFFF
    assert props["model_path"].endswith(".gguf")
    assert props["build_info"].startswith("b")
    assert (props["model_alias"], props["model_ftype"]) == ("tiny", "all F32")
    assert (props["chat_template"], props["eos_token"]) == (CHAT_TEMPLATE, "</s>")
    assert props["chat_template_caps"]["supports_tools"] is False


async def test_44_the_model_is_listed_once_under_all_its_names(stack: Stack) -> None:
    listed = (await stack.http.get("/models")).json()
    [model], [of_ollama] = listed["data"], listed["models"]
    assert (model["id"], set(model["aliases"]), model["tags"]) == ("tiny", {"tiny", "first"}, [])
    n_params = model["meta"].pop("n_params")
    assert model["meta"] == {
        "vocab_type": 2,
        "n_vocab": 258,
        "n_ctx": N_CTX // N_SLOTS,
        "n_ctx_train": N_CTX,
        "n_embd": 64,
        "size": 4 * n_params,
        "ftype": "all F32",
    }
    assert of_ollama["details"]["family"] == "llama" and of_ollama["details"]["quantization_level"] == "F32"
    assert of_ollama["modified_at"].startswith("20")


async def test_45_slots_tell_of_a_text_from_its_beginning_to_behind_its_end(fresh: Fresh, stack: Stack) -> None:
    assert len(fresh.slots) == N_SLOTS
    assert {slot["n_ctx"] for slot in fresh.slots} == {N_CTX // N_SLOTS}
    assert not any("params" in slot or slot["is_processing"] for slot in fresh.slots)
    jobs = [await make_job(stack, ask(f"{n}", n_predict=LONG, top_k=7 + n), priority="interactive") for n in range(2)]

    async def is_full() -> bool:
        return await stack.busy_slots() == N_SLOTS

    await stack.until(is_full)
    for path in ("/slots?fail_on_no_slot=1", "/health?fail_on_no_slot=1"):
        response = await stack.http.get(path)
        assert response.status_code == 503, response.text
    assert {slot["params"]["top_k"] for slot in await slots_of(stack)} == {7, 8}
    assert {slot["top_k"] for slot in await slots_of(stack)} == {7, 8}
    for job in jobs:
        await stack.http.post(f"/v1/jobs/{job}/cancel")
        await follow(stack, job)
    await stack.until(stack.is_idle)
    for slot in await slots_of(stack, "?fail_on_no_slot=1"):
        assert (slot["is_processing"], slot["params"]["n_predict"]) == (False, LONG)
        assert (slot["next_token"][0]["n_remain"], slot["next_token"][0]["n_decoded"]) == (-1, 0)


async def test_46_counts_are_the_sums_over_the_answers(fresh: Fresh, stack: Stack) -> None:
    assert {value for name, value in fresh.metrics.items() if name != "kv_cache_tokens"} == {0}
    before = await metrics_of(stack)
    prompt = "Once upon a time there was a queue. "
    bodies = [
        *[ask(prompt * 3, n_predict=9)] * 2,  # the second from the cache
        ask(prompt * 3 + "And then", n_predict=1),
        ask(prompt, n_predict=0),
        ask([prompt, "Two", "Three"], n_predict=5),
        ask("Hi", temperature=0, grammar='root ::= "one two three four"', stop=["two"], ignore_eos=False),
        ask("Hi", n_predict=40, n=2),
    ]
    timings = []
    for body in bodies:
        response = await stack.http.post("/completion", json=body)
        assert response.status_code == 200, response.text
        answers = response.json()
        timings += [each["timings"] for each in (answers if isinstance(answers, list) else [answers])]
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6}
    timings.append((await stack.http.post("/v1/chat/completions", json=chat)).json()["timings"])
    embedded = (await stack.http.post("/v1/embeddings", json={"input": [prompt, "Hi"]})).json()

    def total(name: str) -> float:
        return sum(each[name] for each in timings)

    expected = {
        "prompt_tokens_total": total("prompt_n") + embedded["usage"]["prompt_tokens"],
        "prompt_tokens_cached_total": total("cache_n"),
        "tokens_predicted_total": total("predicted_n"),
    }
    assert total("cache_n") > 40 and embedded["usage"]["prompt_tokens"] > 5
    found = await grown(stack, before, expected)
    assert {name: found[name] for name in expected} == expected
    assert found["tokens_predicted_seconds_total"] == pytest.approx(total("predicted_ms") / 1e3, rel=1e-3)
    assert found["prompt_seconds_total"] > total("prompt_ms") / 1e3  # with what was embedded
    now = await metrics_of(stack)
    assert now["n_decode_total"] > 0 and 1 <= now["n_busy_slots_per_decode"] <= N_SLOTS
    assert now["predicted_tokens_seconds"] > 0 and now["prompt_tokens_seconds"] > 0
    assert now["n_tokens_max_total"] >= 36
    assert (now["requests_processing"], now["requests_deferred"]) == (0, 0)
    assert 0 < now["kv_cache_usage_ratio"] <= 1 and now["kv_cache_tokens"] <= N_CTX


async def test_46_counts_go_on_in_the_next_worker(fresh: Fresh, stack: Stack) -> None:
    before = await metrics_of(stack)
    await stack.http.post("/completion", json=ask(n_predict=7))
    old = stack.roles[-1]
    old.process.terminate()
    assert await old.wait() == 0
    assert (await metrics_of(stack))["tokens_predicted_total"] - before["tokens_predicted_total"] == 7
    await start_worker(stack, fresh.model)
    await stack.http.post("/completion", json=ask(n_predict=5))
    found = await grown(stack, before, {"tokens_predicted_total": 12})
    assert found["tokens_predicted_total"] == 12
    assert min(found[name] for name in found if name.endswith("_total")) >= 0


async def test_c48_health_is_quick_while_a_long_prompt_is_read(stack: Stack) -> None:
    body = ask("word " * 1300, n_predict=1)
    asked = asyncio.create_task(stack.http.post("/completion", json=body))
    took_s = [await _is_healthy_within(stack)]
    while not asked.done():
        took_s.append(await _is_healthy_within(stack))
    assert (await asked).json()["timings"]["prompt_n"] == 6500
    assert len(took_s) > 10 and _median(took_s) < 0.1, took_s


async def _is_healthy_within(stack: Stack) -> float:
    started = time.monotonic()
    response = await stack.http.get("/health")
    assert response.status_code == 200
    return time.monotonic() - started


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
