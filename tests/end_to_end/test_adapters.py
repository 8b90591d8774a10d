"""Adapters over HTTP: what a request asks for, what is usual, and what is no adapter. The shared stack has two."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.end_to_end.asking import answer, post, refusal
from tests.stack import Stack, ask

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = "What is there to be said of it, whatever else there may be"


def lora(*scales: float) -> list[dict[str, Any]]:
    return [{"id": id, "scale": scale} for id, scale in enumerate(scales)]


async def said(stack: Stack, **more: Any) -> dict[str, Any]:
    return await answer(stack, ask(PROMPT, temperature=0, **more))


async def set_scales(stack: Stack, scales: list[dict[str, Any]]) -> list[float]:
    """The scales that are shown at once after it."""
    assert (await post(stack, "/lora-adapters", scales)).json() == {"success": True}
    return [adapter["scale"] for adapter in (await stack.http.get("/lora-adapters")).json()]


async def test_requests_with_different_adapters_each_have_their_own_also_at_once(served: Stack) -> None:
    sets = [lora(0, 0), lora(1, 0), lora(0, 1), lora(0.5, 2)]
    alone = [(await said(served, lora=scales))["content"] for scales in sets]
    assert len(set(alone)) == len(sets)
    assert (await said(served))["content"] == alone[0]
    together = await asyncio.gather(*(said(served, lora=scales, cache_prompt=False) for scales in [*sets, *sets]))
    assert [each["content"] for each in together] == [*alone, *alone]
    assert together[1]["generation_settings"]["lora"] == sets[1]


async def test_what_is_usual_can_be_changed_and_then_nothing_of_before_is_reused_but_what_was_so_before(
    served: Stack,
) -> None:
    try:
        assert await set_scales(served, lora(0.25)) == [0.25, 0.0]
        first, again = await said(served), await said(served)
        assert await set_scales(served, []) == [0.0, 0.0]
        plain = await said(served)
        assert await set_scales(served, lora(0.25)) == [0.25, 0.0]
        back = await said(served)
    finally:
        assert await set_scales(served, []) == [0.0, 0.0]
    assert first["content"] == again["content"] == back["content"] == (await said(served, lora=lora(0.25)))["content"]
    assert first["content"] != plain["content"]
    assert first["timings"]["cache_n"] == 0 < again["timings"]["cache_n"] == back["timings"]["cache_n"]


@pytest.mark.parametrize(
    ("scales", "field"),
    [
        (lora(0, 0, 1), "lora"),
        ([{"id": 0, "scale": 1e39}], "lora[0].scale"),
        ([{"id": -1, "scale": 1}], "lora[0].id"),
        ([{"id": 0, "scale": "much"}], "lora[0].scale"),
    ],
)
async def test_an_adapter_that_is_not_there_is_the_clients_fault(served: Stack, scales: Any, field: str) -> None:
    error = await refusal(served, ask(lora=scales))
    assert error["message"].startswith(f"Field '{field}': ")
    await refusal(served, scales, "/lora-adapters")
    assert [adapter["scale"] for adapter in (await served.http.get("/lora-adapters")).json()] == [0.0, 0.0]


@pytest.mark.parametrize("body", [{}, {"id": 0, "scale": 1}, "adapter", 1, None])
async def test_scales_are_a_list(served: Stack, body: Any) -> None:
    await refusal(served, body, "/lora-adapters")
