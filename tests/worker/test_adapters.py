"""Adapters of whole workers: what a job asks for, what is usual, and that workers agree on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from shared.bus import AdapterCard, Bus, ModelCard
from shared.events import AdapterScales, Answer
from shared.jobs import Adapter, Completion, Lane, SetAdapters
from tests.models import write_adapter
from tests.worker.crew import PATIENCE_S, WILD, Worker, heard_of, queued
from worker.engine.adapters import AdapterFile

Hire = Callable[..., Any]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[AdapterFile, ...]:
    folder = tmp_path_factory.mktemp("adapters")
    return tuple(AdapterFile(write_adapter(folder / f"{seed}.gguf", seed=seed), 0.0) for seed in (1, 2))


def asks(*scales: float, n_predict: int = 12) -> Completion:
    """With these; without any, as it is usual."""
    lora = tuple(Adapter(id=id, scale=scale) for id, scale in enumerate(scales)) or None
    return Completion(prompts=("Once upon a time there",), n_predict=n_predict, sampling=WILD, lora=lora)


async def said(bus: Bus, *scales: float) -> Answer:
    [answer] = (await heard_of(bus, asks(*scales))).answers
    return answer


async def set_scales(bus: Bus, *scales: float) -> tuple[float, ...]:
    named = tuple(Adapter(id=id, scale=scale) for id, scale in enumerate(scales))
    finished = (await heard_of(bus, SetAdapters(adapters=named))).finished
    assert finished is not None
    [told] = finished.parts
    assert isinstance(told, AdapterScales)
    return told.scales


async def card_of(bus: Bus, worker: str, is_meant: Callable[[ModelCard], bool]) -> ModelCard:
    """As soon as it is so."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for each in await bus.presence.workers():
                if each.id == worker and is_meant(each.model):
                    return each.model


async def test_a_job_has_the_adapters_that_it_names_or_else_those_that_are_set(
    bus: Bus, hire: Hire, adapters: tuple[AdapterFile, ...]
) -> None:
    await hire(adapters=adapters)
    plain, first = (await said(bus)).text, (await said(bus, 1.0, 0.0)).text
    assert plain == (await said(bus, 0.0, 0.0)).text != first
    async with queued(bus, asks(n_predict=200), Lane.BULK) as running:
        await running.until(lambda: len(running.tokens[0]) > 0)
        assert await set_scales(bus, 1.0) == (1.0, 0.0)
        assert (await said(bus)).text == first
        assert (await running.to_the_end()).answers[0].text.startswith(plain)


async def test_the_scales_are_announced_as_soon_as_they_change(
    bus: Bus, hire: Hire, adapters: tuple[AdapterFile, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.presence.EVERY_S", 1e6)
    await hire(adapters=adapters)
    paths = [str(adapter.path) for adapter in adapters]
    card = await card_of(bus, "w1", lambda card: bool(card.adapters))
    assert card.adapters == tuple(AdapterCard(path=path, scale=0.0) for path in paths)
    assert card.adapters_set_at == 0.0
    await set_scales(bus, 0.25, -1.0)
    card = await card_of(bus, "w1", lambda card: card.adapters_set_at > 0.0)
    assert [adapter.scale for adapter in card.adapters] == [0.25, -1.0]


async def test_an_adapter_that_is_not_there_refuses_the_job_alone_and_changes_nothing(
    bus: Bus, hire: Hire, adapters: tuple[AdapterFile, ...]
) -> None:
    worker: Worker = await hire(adapters=adapters)
    before = worker.engine.adapters.defaults
    for request in (asks(1.0, 1.0, 1.0), SetAdapters(adapters=(Adapter(id=2, scale=1.0),))):
        finished = (await heard_of(bus, request)).finished
        assert finished is not None and finished.failure is not None
        assert (finished.failure.code, finished.failure.param) == ("invalid_request", "lora")
    assert worker.engine.adapters.defaults is before


async def test_who_starts_takes_over_what_was_set_at_those_with_the_same_adapters(
    bus: Bus, hire: Hire, adapters: tuple[AdapterFile, ...]
) -> None:
    await hire("w1", adapters=adapters)
    await card_of(bus, "w1", lambda card: bool(card.adapters))
    flags: Worker = await hire("w2", adapters=[adapter._replace(scale=0.5) for adapter in adapters])
    assert flags.engine.adapters.defaults.scales == (0.5, 0.5), "nobody has set any yet"
    flags.engine.adapters.set_defaults([Adapter(id=1, scale=0.75)])
    await card_of(bus, "w2", lambda card: card.adapters_set_at > 0.0)
    late, other = await hire("w3", adapters=adapters), await hire("w4", adapters=adapters[:1])
    assert late.engine.adapters.defaults == flags.engine.adapters.defaults
    assert other.engine.adapters.defaults.scales == (0.0,)


async def test_a_text_goes_on_with_its_adapters_when_its_worker_dies(
    bus: Bus, hire: Hire, adapters: tuple[AdapterFile, ...]
) -> None:
    first = await hire("w1", adapters=adapters)
    whole = (await heard_of(bus, asks(0.5, 1.0, n_predict=60))).text(0)
    async with queued(bus, asks(0.5, 1.0, n_predict=60)) as listener:
        await listener.until(lambda: len(listener.tokens[0]) > 5)
        await first.kill()
        await hire("w2", adapters=adapters)
        await listener.to_the_end()
    assert listener.answers[0].timings.predicted_n == 60
    assert listener.text(0) == whole
