"""What a request asks of its generation: limits, seeds, samplers, prompts, caches, on a stack that many share.

The numbers are those of the bank of cases that this project keeps. Every test leaves the stack as `served` finds it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.end_to_end.asking import answer, post, refusal, say, stream
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")

N_CTX = 256
"""Of a slot of the shared stack."""

OFF_AND_ABSURD = [
    *({"top_k": value} for value in (0, -5, 1, 10**6)),
    *({"top_p": value} for value in (0, 1, 7)),
    *({"min_p": value} for value in (0, 1, 2)),
    {"typical_p": 0},
    *({"temperature": value} for value in (0, -1, 1e-9, 1e38)),
    *({"mirostat": value} for value in (0, 1, 2, 9)),
    {"samplers": []},
    {"repeat_last_n": 0, "repeat_penalty": 1.5},
    {"repeat_last_n": -1, "repeat_penalty": 1.5},
    {"min_keep": 10**6},
]


@pytest.mark.parametrize("sampling", OFF_AND_ABSURD, ids=str)
async def test_c28_a_sampler_that_is_off_or_absurd_still_gives_the_same_tokens_again(
    served: Stack, sampling: dict[str, Any]
) -> None:
    body = {"prompt": "Hi", "n_predict": 4, "seed": 1, "ignore_eos": True, **sampling}
    said = [await answer(served, body | more) for more in ({}, {}, {"n_probs": 3, "post_sampling_probs": True})]
    assert len({each["content"] for each in said}) == 1
    assert [each["tokens_predicted"] for each in said] == [4] * 3
    told = [entry["prob"] for entry in said[-1]["completion_probabilities"]]
    assert len(told) == 4 and all(0 <= probability <= 1 for probability in told)


async def test_c28_all_words_for_the_likeliest_token_mean_it(served: Stack) -> None:
    greedy = [{"temperature": 0}, {"temperature": -1}, {"top_k": 1}, {"top_p": 0}, {"min_p": 1}, {"temperature": 1e-9}]
    bodies = [{"prompt": "Hi", "n_predict": 8, "seed": 1, "ignore_eos": True, **one} for one in greedy]
    assert len({(await answer(served, body))["content"] for body in bodies}) == 1


WARM = {"prompt": "Once upon a time", "n_predict": 20, "temperature": 1.5, "ignore_eos": True}


async def test_c29_a_seed_says_the_same_again_in_any_slot_in_company_and_from_the_cache(served: Stack) -> None:
    body = WARM | {"seed": 7}
    alone = await answer(served, body | {"cache_prompt": False})
    assert (await answer(served, body))["content"] == alone["content"]
    in_slots = [await answer(served, body | {"id_slot": slot}) for slot in (0, 0, 1)]
    assert [(one["id_slot"], one["content"]) for one in in_slots] == [(n, alone["content"]) for n in (0, 0, 1)]
    neighbours = [answer(served, WARM | {"seed": seed, "n_predict": 60}) for seed in range(3)]
    *_, in_company = await asyncio.gather(*neighbours, answer(served, body))
    assert in_company["content"] == alone["content"]
    assert (await answer(served, WARM | {"seed": 8}))["content"] != alone["content"]


async def test_c29_a_seed_that_was_chosen_for_you_is_told_and_can_be_used_again(served: Stack) -> None:
    said = [await answer(served, WARM | {"seed": seed}) for seed in (-1, -1, None)]
    seeds = {one["generation_settings"]["seed"] for one in said}
    assert len(seeds) == len({one["content"] for one in said}) == 3
    for one in said:
        again = await answer(served, WARM | {"seed": one["generation_settings"]["seed"]})
        assert again["content"] == one["content"]


async def test_c29_zero_and_the_highest_are_seeds_and_what_is_beyond_is_refused(served: Stack) -> None:
    for seed in (0, 2**32 - 1):
        first, second = [await answer(served, WARM | {"seed": seed}) for _ in range(2)]
        assert (first["generation_settings"]["seed"], first["content"]) == (seed, second["content"])
    for bad in (2**32, 2**63, -2, "x", 1.5, True):
        await refusal(served, WARM | {"seed": bad})


async def test_c29_choices_of_one_seed_differ_and_come_again(served: Stack) -> None:
    bodies = [WARM | {"seed": 7, "n": 2} for _ in range(2)]
    first, second = [[choice["content"] for choice in await post_list(served, body)] for body in bodies]
    assert first == second
    assert len(set(first)) == 2


async def test_c29_equal_prompts_of_one_seed_say_the_same(served: Stack) -> None:
    first, second = await post_list(served, WARM | {"prompt": [WARM["prompt"]] * 2, "seed": 7})
    assert first["content"] == second["content"]


async def post_list(stack: Stack, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await post(stack, "/completion", body)
    assert response.status_code == 200, response.text
    said: list[dict[str, Any]] = response.json()
    assert [one["index"] for one in said] == list(range(len(said)))
    return said


async def test_c38_without_a_limit_a_text_ends_where_its_context_does(served: Stack) -> None:
    for n_predict in ({"n_predict": -1}, {}):
        said = await answer(served, {"prompt": "Hi " * 50, "ignore_eos": True, "temperature": 0, **n_predict})
        assert said["tokens_evaluated"] + said["tokens_predicted"] == N_CTX
        assert (said["stop_type"], said["truncated"]) == ("limit", True)


async def test_c38_a_limit_that_means_nothing_is_refused(served: Stack) -> None:
    for n_predict in (-2, -3, -(2**31)):
        assert "n_predict" in (await refusal(served, {"prompt": "Hi", "n_predict": n_predict}))["message"]


async def test_c38_an_endless_text_ends_with_its_deadline_or_its_reader(served: Stack) -> None:
    endless = {"prompt": "Hi", "n_predict": -1, "ignore_eos": True, "shift": True}
    made = await served.http.post("/v1/jobs", json={"endpoint": "/completion", "body": endless, "deadline_s": 1})
    assert made.status_code == 202, made.text

    async def is_expired() -> bool:
        return bool((await served.http.get(f"/v1/jobs/{made.json()['id']}")).json()["status"] == "expired")

    await served.until(is_expired)
    with pytest.raises(httpx.ReadTimeout):
        await served.http.post("/completion", json=endless, timeout=0.5)
    await served.until(served.is_idle)


SHIFTED = {
    "prompt": "one two three four five six seven eight " * 6,
    "n_predict": 400,
    "ignore_eos": True,
    "shift": True,
}


@pytest.mark.parametrize(
    "keeps",
    [*({"n_keep": value} for value in (-1, 0, 5, 10**9)), *({"n_discard": value} for value in (0, 1, 10**9))],
    ids=str,
)
async def test_c39_a_shifted_text_goes_on_whatever_is_to_be_kept_or_dropped(
    served: Stack, keeps: dict[str, int]
) -> None:
    said = await answer(served, SHIFTED | keeps | {"temperature": 0})
    assert (said["tokens_predicted"], said["stop_type"], said["truncated"]) == (400, "limit", True)


async def test_c39_what_cannot_be_kept_or_dropped_is_refused(served: Stack) -> None:
    for keeps in ({"n_keep": -7}, {"n_discard": -32}, {"n_keep": 2**31}, {"n_discard": 1.5}):
        assert next(iter(keeps)) in (await refusal(served, SHIFTED | keeps))["message"]


@pytest.mark.parametrize(
    ("prompt", "n_prompts"),
    [
        ([9906, 28], 1),
        ([9906, "hello", 28], 1),
        (["hello", 28], 1),
        ([[9906, 28], "hi", ["x", 30]], 3),
        (["a" * (10 - n) * 3 for n in range(10)], 10),
        (["a", ""], 2),
    ],
    ids=["ids", "mixed", "text first", "many kinds", "ten", "an empty one"],
)
async def test_c40_an_array_has_an_answer_for_each_prompt_in_its_order(
    served: Stack, prompt: list[Any], n_prompts: int
) -> None:
    body = {"prompt": prompt, "n_predict": 3, "temperature": 0, "ignore_eos": True}
    alone = [await answer(served, body | {"prompt": one}) for one in prompt] if n_prompts > 1 else []
    response = await post(served, "/completion", body)
    assert response.status_code == 200, response.text
    said = response.json() if n_prompts > 1 else [response.json()]
    assert [one["index"] for one in said] == list(range(n_prompts))
    if n_prompts > 1:
        assert [one["content"] for one in said] == [one["content"] for one in alone]
        assert [one["tokens_evaluated"] for one in said] == [one["tokens_evaluated"] for one in alone]
    texts = [""] * n_prompts
    n_ends = 0
    for event in await stream(served, body):
        texts[event["index"]] += event["content"]
        n_ends += event["stop"]
    assert (texts, n_ends) == ([one["content"] for one in said], n_prompts)
    choices = (await answer(served, body | {"max_tokens": 3}, "/v1/completions"))["choices"]
    assert [choice["index"] for choice in choices] == list(range(n_prompts))
    assert [choice["text"] for choice in choices] == texts
    pieces = [event["choices"][0] for event in await stream(served, body | {"max_tokens": 3}, "/v1/completions")]
    assert ["".join(piece["text"] for piece in pieces if piece["index"] == n) for n in range(n_prompts)] == texts


async def test_c40_one_bad_element_stops_the_whole_array(served: Stack) -> None:
    for prompt in (["a", [49152]], ["a", [1.5]], ["a", None], ["a", {"x": 1}], [1, 2, [3]]):
        await refusal(served, {"prompt": prompt, "n_predict": 3})


async def test_c58_a_cached_beginning_changes_no_word(served: Stack) -> None:
    start = "The harbour lies where two rivers meet the sea, and the people there argue about the mud. " * 6
    prompts = [start, start + "One day", start[: len(start) // 2], "Something else.", start]
    # Few tokens: a later one leads the next likely by 0.0001 only, and sums depend on which cells a sequence has.
    asked = [
        {"prompt": prompt, "n_predict": 3, "temperature": 0, "ignore_eos": True, "id_slot": 0} for prompt in prompts
    ]
    cached = [await say(served, body) for body in asked]
    plain = [await say(served, body | {"cache_prompt": False}) for body in asked]
    assert [one["content"] for one in cached] == [one["content"] for one in plain]
    for one in (*cached, *plain):
        assert one["timings"]["cache_n"] + one["timings"]["prompt_n"] == one["tokens_evaluated"]
        assert one["timings"]["prompt_n"] >= 1
        assert one["tokens_cached"] == one["tokens_evaluated"] + one["tokens_predicted"] - 1
    assert [one["timings"]["cache_n"] for one in plain] == [0] * len(plain)
    assert cached[1]["timings"]["cache_n"] >= cached[0]["tokens_evaluated"] - 1
