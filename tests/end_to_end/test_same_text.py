"""Text that must be the same: as llama-server's, alone and among seven neighbours, and after a kill. On the demo model.

This worker decodes at most 32 rows at once, for the reason that `greedy.json` gives: then llama.cpp rounds alike
whatever else is in a batch, and whatever pieces a prompt comes in.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.models import demo_model_path
from tests.stack import Role, Stack, check_gapless, follow, generating, make_job

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY = json.loads(Path(__file__).with_name("greedy.json").read_text())

PROMPTS = [
    "The capital of Japan is",
    "Once upon a time there was a little",
    "def fibonacci(n):\n    if n",
    "Dear Sir, I am writing to",
    "1, 2, 3, 4,",
    "Die Hauptstadt von Frankreich ist",
    "My favourite food is 🍕 and",
    "In 1969, the first man",
]


N_ALONE = 4
"""Of them are also asked for alone."""


def asked(number: int) -> dict[str, Any]:
    return {
        "prompt": PROMPTS[number],
        "n_predict": 16,
        "temperature": 0.8,
        "seed": 100 + number,
        "ignore_eos": True,
        "cache_prompt": False,
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    stack = Stack(redis_url, tmp_path_factory.mktemp("seeds"))
    try:
        await stack.start_api()
        yield stack
    finally:
        await stack.close()


async def start_worker(stack: Stack) -> Role:
    return await stack.start_worker(demo_model_path(), alias="demo", ctx_size=4096, parallel=8, batch_size=32)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(stack: Stack) -> Role:
    return await start_worker(stack)


ROUNDING = 0.3
"""Nats by which one processor's logits differ from another's, where weights are quantized: a token that leads by less
may be another one there."""


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_greedy_text_is_that_of_llama_server(stack: Stack, worker: Role) -> None:
    """All at once: each in a slot, beside seven others or waiting for them. The texts were made on another machine."""

    async def ask(text: dict[str, Any]) -> dict[str, Any]:
        body = GREEDY["request"] | {"prompt": text["prompt"], "n_predict": text["n_predict"], "n_probs": 2}
        answer: dict[str, Any] = (await stack.http.post("/completion", json=body, timeout=110)).json()
        return answer

    answers = await asyncio.gather(*(ask(text) for text in GREEDY["texts"]))
    n_equal = 0
    for text, answer in zip(GREEDY["texts"], answers, strict=True):
        said = (answer["content"], answer["tokens_predicted"], answer["stop_type"])
        if said == (text["content"], text["n_tokens"], text["stop_type"]):
            n_equal += 1
        else:
            assert lead_where_they_part(answer, text["content"]) < ROUNDING, text["name"]
    assert len(answers) >= 20
    assert n_equal >= len(answers) / 2


def lead_where_they_part(answer: dict[str, Any], other: str) -> float:
    """Nats by which the first token led that is not in the other text."""
    said = ""
    for token in answer["completion_probabilities"]:
        said += token["token"]
        if not other.startswith(said):
            first, second = token["top_logprobs"]
            return float(first["logprob"] - second["logprob"])
    raise AssertionError(f"{said!r} is the beginning of {other!r}, or has ended otherwise")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(stack: Stack, worker: Role) -> list[str]:
    """What each says with nobody beside it."""
    return [await text_of(stack, number) for number in range(N_ALONE)]


async def text_of(stack: Stack, number: int) -> str:
    response = await stack.http.post("/completion", json=asked(number))
    assert response.status_code == 200, response.text
    text: str = response.json()["content"]
    return text


@pytest.mark.slow
async def test_a_seed_says_the_same_among_seven_neighbours(stack: Stack, alone: list[str]) -> None:
    together = await asyncio.gather(*(text_of(stack, number) for number in range(len(PROMPTS))))
    assert together[:N_ALONE] == alone
    assert len(set(together)) == len(PROMPTS)


@pytest.mark.slow
async def test_a_seed_says_the_same_after_its_worker_was_killed(stack: Stack, worker: Role, alone: list[str]) -> None:
    jobs = [await make_job(stack, asked(number), priority="interactive") for number in range(len(PROMPTS))]
    readers = [asyncio.create_task(follow(stack, job)) for job in jobs]

    async def some_have_begun() -> bool:
        return bool(await generating(stack))

    await stack.until(some_have_begun, worker)
    worker.signal(signal.SIGKILL)
    await start_worker(stack)
    ended = await asyncio.gather(*readers)
    for tokens, _ in ended:
        check_gapless(tokens)
    assert [job["result"]["content"] for _, job in ended[:N_ALONE]] == alone
    assert max(job["attempts"] for _, job in ended) == 2
