"""What holds through all roles together: requests, streams, sharing, stops and deaths."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from shared.bus import EmbeddedServer, open_bus
from tests.models import demo_model_path
from tests.stack import LONG, Stack, ask, check_gapless, follow, generating, make_job


async def events(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) async for line in response.aiter_lines() if line.startswith("data: {")]


async def test_a_stream_says_what_the_plain_answer_says(stack: Stack, model: Path) -> None:
    await stack.start_worker(model)
    plain = (await stack.http.post("/completion", json=ask())).json()
    async with stack.http.stream("POST", "/completion", json=ask(stream=True)) as response:
        streamed = await events(response)
    assert plain["tokens_predicted"] == 12
    assert "".join(event["content"] for event in streamed) == plain["content"]
    assert [event["stop"] for event in streamed] == [False] * (len(streamed) - 1) + [True]
    assert streamed[-1]["tokens_predicted"] == 12


async def test_what_only_a_worker_can_know_is_a_plain_error_even_for_a_stream(stack: Stack, model: Path) -> None:
    await stack.start_worker(model, ctx_size=512, parallel=4)
    for body in (ask("word " * 400, stream=True), ask("word " * 400)):
        response = await stack.http.post("/completion", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", 128)
        assert error["n_prompt_tokens"] >= 128
    for prompt in ([49152], [2**30]):
        response = await stack.http.post("/completion", json=ask() | {"prompt": prompt})
        assert response.status_code == 400, response.text
    assert (await stack.http.post("/completion", json=ask())).status_code == 200


async def test_what_needs_no_slot_is_answered_while_all_slots_are_taken(stack: Stack, model: Path) -> None:
    await stack.start_worker(model, ctx_size=8192, parallel=1)
    jobs = [await make_job(stack, ask(n_predict=7000), priority="interactive") for _ in range(2)]
    await stack.until(lambda: _is(stack, busy=1))

    async def post(path: str, body: dict[str, Any]) -> Any:
        response = await stack.http.post(path, json=body, timeout=30)
        assert response.status_code == 200, response.text
        return response.json()

    text = "Grüße, 世界! 🌍"
    ids = (await post("/tokenize", {"content": text}))["tokens"]
    assert await post("/detokenize", {"tokens": ids}) == {"content": text}
    assert await post("/tokenize", {"content": [*ids[:3], "x", 5]}) == {
        "tokens": [*ids[:3], *(await post("/tokenize", {"content": "x"}))["tokens"], 5]
    }
    assert await post("/tokenize", {}) == {"tokens": []}
    pieces = (await post("/tokenize", {"content": text, "with_pieces": True}))["tokens"]
    assert [piece["id"] for piece in pieces] == ids
    raw = [piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"]) for piece in pieces]
    assert b"".join(raw) == text.encode()
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    assert (await post("/apply-template", chat))["prompt"].endswith("Hello<|im_end|>\n<|im_start|>assistant\n")

    response = await stack.http.post("/detokenize", json={"tokens": [2**30]})
    assert (response.status_code, "tokens" in response.text or "vocabulary" in response.text) == (400, True)
    states = [(await stack.http.post(f"/v1/jobs/{job_id}/cancel")).json()["status"] for job_id in jobs]
    assert "succeeded" not in states[1:], "the slot was free after all: the test shows nothing"


@pytest.mark.slow
async def test_two_streams_share_one_batch(stack: Stack, model: Path) -> None:
    await stack.start_worker(model, ctx_size=8192, parallel=2)
    jobs = [await make_job(stack, ask(n_predict=LONG, seed=n), priority="interactive") for n in range(2)]

    async def both_at_work() -> bool:
        return len({slot["id"] for slot in await generating(stack)}) == 2

    await stack.until(both_at_work)
    ended = await asyncio.gather(*(follow(stack, job) for job in jobs))
    assert [job["status"] for _, job in ended] == ["succeeded"] * 2


async def test_a_client_that_goes_away_frees_its_slot(stack: Stack, model: Path) -> None:
    await stack.start_worker(model, ctx_size=16384, parallel=2)
    async with stack.http.stream("POST", "/completion", json=ask(n_predict=7000, stream=True)) as response:
        lines = response.aiter_lines()  # held: let go of, it would close the stream
        await anext(lines)
        await stack.until(lambda: _is(stack, busy=1))
    await stack.until(lambda: _is(stack, busy=0))
    with pytest.raises(httpx.ReadTimeout):
        await stack.http.post("/completion", json=ask(n_predict=7000), timeout=0.5)
    await stack.until(lambda: _is(stack, busy=0))
    assert (await stack.http.post("/completion", json=ask())).status_code == 200


async def _is(stack: Stack, busy: int) -> bool:
    return await stack.busy_slots() == busy


@pytest.mark.slow
async def test_two_workers_share_a_queue(stack: Stack, model: Path) -> None:
    await stack.start_worker(model, parallel=2)
    await stack.start_worker(model, parallel=2)
    jobs = [await make_job(stack, ask(n_predict=24, seed=n)) for n in range(24)]
    ended = [await follow(stack, job) for job in jobs]
    assert [job["status"] for _, job in ended] == ["succeeded"] * 24
    async with open_bus(stack.bus_settings, name="test") as bus:
        records = [await bus.queue.record(job) for job in jobs]
    assert {record.finished.worker for record in records if record and record.finished} == await stack.workers()


@pytest.mark.slow
async def test_a_worker_that_is_told_to_leave_gives_its_jobs_back_and_no_attempt_is_burnt(
    stack: Stack, model: Path
) -> None:
    whole = await _text_alone(stack, model)
    first = await stack.start_worker(model, ctx_size=16384, parallel=2)
    job = await make_job(stack, ask(n_predict=LONG))
    reader = asyncio.create_task(follow(stack, job))
    await stack.until(lambda: _has_begun(stack))
    second = await stack.start_worker(model, ctx_size=16384, parallel=2)
    first.signal(signal.SIGTERM)
    assert await first.wait() == 0
    tokens, ended = await reader
    check_gapless(tokens)
    assert (ended["status"], ended["attempts"]) == ("succeeded", 1)
    assert "".join(text for _, text in tokens) == ended["result"]["content"] == whole
    assert second.process.poll() is None


@pytest.mark.slow
async def test_a_killed_workers_streams_go_on_at_the_next_token(stack: Stack, model: Path) -> None:
    whole = await _text_alone(stack, model)
    first = await stack.start_worker(model, ctx_size=16384, parallel=2)
    job = await make_job(stack, ask(n_predict=LONG), priority="interactive")
    reader = asyncio.create_task(follow(stack, job))
    await stack.until(lambda: _has_begun(stack))
    first.signal(signal.SIGKILL)
    await stack.start_worker(model, ctx_size=16384, parallel=2)
    tokens, ended = await reader
    check_gapless(tokens)
    assert (ended["status"], ended["attempts"]) == ("succeeded", 2)
    assert "".join(text for _, text in tokens) == ended["result"]["content"] == whole
    late, again = await follow(stack, job, after=7)
    assert late == tokens[7:] and again == ended


@pytest.mark.slow
async def test_a_worker_that_was_away_for_longer_than_its_lease_says_nothing_twice(stack: Stack, model: Path) -> None:
    """It wakes up, finds its own jobs without an owner, and claims them again: its earlier words are void."""
    worker = await stack.start_worker(model, ctx_size=16384, parallel=4, lease_s=0.5)
    jobs = [await make_job(stack, ask(n_predict=LONG, seed=n)) for n in range(3)]
    readers = [asyncio.create_task(follow(stack, job)) for job in jobs]
    await stack.until(lambda: _has_begun(stack))
    for _ in range(4):
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(0.9)  # the pause is the fault itself
        worker.signal(signal.SIGCONT)
        await asyncio.sleep(0.3)
    for tokens, ended in await asyncio.gather(*readers):
        check_gapless(tokens)
        if ended["status"] == "succeeded":
            assert "".join(text for _, text in tokens) == ended["result"]["content"]
            assert ended["result"]["tokens_predicted"] == LONG
        else:
            assert ended["error"]["message"].startswith("The job was given up")


async def _text_alone(stack: Stack, model: Path) -> str:
    """The text of the long answer, undisturbed."""
    worker = await stack.start_worker(model, ctx_size=16384, parallel=2)
    text: str = (await stack.http.post("/completion", json=ask(n_predict=LONG))).json()["content"]
    worker.signal(signal.SIGTERM)
    await worker.wait()
    return text


async def _has_begun(stack: Stack) -> bool:
    return bool(await generating(stack))


@pytest.mark.slow
async def test_the_server_may_be_killed_under_a_stream(tmp_path: Path, model: Path) -> None:
    """All of it comes back by itself: the stream goes on, without a gap and without a repeat."""
    with EmbeddedServer() as server:
        stack = Stack(server.start(tmp_path / "valkey"), tmp_path)
        try:
            await stack.start_api()
            await stack.start_worker(model, ctx_size=16384, parallel=2)
            job = await make_job(stack, ask(n_predict=LONG))
            reader = asyncio.create_task(follow(stack, job))
            await stack.until(lambda: _has_begun(stack))
            assert server.pid
            os.kill(server.pid, signal.SIGKILL)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start, tmp_path / "valkey")
            tokens, ended = await reader
            check_gapless(tokens)
            assert ended["status"] == "succeeded"
            assert "".join(text for _, text in tokens) == ended["result"]["content"]
            assert len(ended["result"]["content"]) > 0
        finally:
            await stack.close()


async def test_the_openai_client_works_on_the_real_thing(stack: Stack) -> None:
    await stack.start_worker(demo_model_path(), alias="smollm", threads=0, ctx_size=4096, parallel=4)
    client = openai.AsyncOpenAI(base_url=f"{stack.http.base_url}/v1", api_key="none")
    question: list[Any] = [{"role": "user", "content": "What is the capital of Japan?"}]
    plain = await client.chat.completions.create(model="x", messages=question, max_tokens=16, temperature=0)
    assert "Tokyo" in (plain.choices[0].message.content or "")
    assert plain.usage and plain.usage.completion_tokens <= 16
    chunks = [
        chunk.choices[0].delta.content or ""
        async for chunk in await client.chat.completions.create(
            model="x", messages=question, max_tokens=16, temperature=0, stream=True
        )
    ]
    assert "".join(chunks) == plain.choices[0].message.content
    vectors = await client.embeddings.create(model="x", input=["a cat", "a kitten", "the stock market", "a cat"])
    cat, kitten, market, again = (np.array(item.embedding) for item in vectors.data)
    plain_cat = (await client.embeddings.create(model="x", input="a cat", encoding_format="float")).data[0].embedding
    assert len(cat) == 576 and cat == pytest.approx(plain_cat, abs=1e-6)  # the client asks for base64 by itself
    assert cat @ cat == pytest.approx(1, abs=1e-3)
    assert np.abs(cat - again).max() < 1e-5
    assert cat @ kitten > cat @ market
    await client.close()
