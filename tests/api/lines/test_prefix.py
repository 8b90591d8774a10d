from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from api.lines.prefix import N_KEYS, STEPS, keys_of, prefix_order

URL = "/v1/chat/completions"


def order(*asks: tuple[str, dict[str, Any]]) -> list[int]:
    keys = np.array([keys_of(url, body) for url, body in asks], np.uint64).reshape(-1, N_KEYS)
    places: list[int] = prefix_order(keys).tolist()
    return places


def chat(system: str, user: str, **more: Any) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return URL, {"messages": messages, **more}


def prompt(text: Any, url: str = "/completion", **more: Any) -> tuple[str, dict[str, Any]]:
    return url, {"prompt": text, **more}


def test_lines_that_share_a_beginning_follow_each_other_in_the_order_of_the_first_ones() -> None:
    a, b, c = ("a" * 100, "b" * 100, "c" * 100)
    lines = [chat(a, "1"), chat(b, "1"), chat(a, "2"), chat(c, "1"), chat(b, "2"), chat(a, "3")]
    assert order(*lines) == [0, 2, 5, 1, 4, 3]


def test_a_file_whose_lines_share_nothing_runs_from_its_top_to_its_end() -> None:
    assert order(*[prompt(f"{n} is the first word") for n in range(50)]) == list(range(50))
    assert order() == []


@pytest.mark.parametrize("step", STEPS)
def test_those_that_share_more_are_nearer(step: int) -> None:
    """Texts that part just behind a step's characters, or just before."""
    far, near = "x" * (step - 1), "x" * step
    lines = [prompt(near + "1"), prompt(far + "2"), prompt(near + "3"), prompt(far + "4")]
    assert order(*lines) == [0, 2, 1, 3]


def test_lines_of_one_path_and_model_stay_together() -> None:
    lines = [
        prompt("a" * 80, model="m"),
        prompt("a" * 80, model="n"),
        prompt("a" * 80, "/v1/completions", model="m"),
        prompt("b" * 80, model="m"),
        prompt("a" * 80, model="m"),
    ]
    assert order(*lines) == [0, 4, 3, 1, 2]


def test_tools_and_what_the_system_says_come_first_in_a_prompt_wherever_they_stand_in_the_body() -> None:
    tools = [[{"type": "function", "function": {"name": name * 80}}] for name in "ab"]
    lines = [chat("s", "u", tools=tools[0]), chat("s", "u", tools=tools[1]), chat("t", "v", tools=tools[0])]
    assert order(*lines) == [0, 2, 1]
    responses = [("/v1/responses", {"input": text, "instructions": rules * 80}) for text, rules in ["1a", "1b", "2a"]]
    assert order(*responses) == [0, 2, 1]


def test_prompts_of_tokens_and_parts_of_messages_are_compared_too() -> None:
    tokens = [prompt([*([7] * 40), n]) for n in (1, 2)]
    assert order(tokens[0], prompt([8] * 40), tokens[1]) == [0, 2, 1]
    parts = [chat([{"type": "text", "text": "a" * 80}], "u"), chat([{"type": "text", "text": "b" * 80}], "u")]  # type: ignore[arg-type]
    assert order(parts[0], parts[1], parts[0]) == [0, 2, 1]


@pytest.mark.parametrize("url", ["/v1/embeddings", "/embedding", "/api/embed", "/v1/rerank", "/reranking"])
def test_inputs_that_have_no_beginning_worth_keeping_stay_in_the_order_of_the_file(url: str) -> None:
    lines = [(url, {"input": text * 100, "query": text}) for text in ("a", "b", "a")]
    assert order(*lines) == [0, 1, 2]


@pytest.mark.parametrize("body", [{}, {"prompt": None}, {"prompt": 3}, {"messages": "x"}, {"model": 7, "tools": {}}])
def test_what_is_no_request_has_its_place_too(body: dict[str, Any]) -> None:
    assert order((URL, body)) == [0]
