"""What a worker's card tells of its model, which clients of all families ask for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.bus import Bus, ModelCard
from shared.settings import BusSettings
from tests.models import write_byte_model, write_encoder_model, write_infill_model
from tests.worker.crew import PATIENCE_S, Worker


async def card_of(bus: Bus, settings: BusSettings, model: Path) -> ModelCard:
    async with Worker(bus, settings, model, "w1"), asyncio.timeout(PATIENCE_S):
        while not (workers := await bus.presence.workers()):
            continue
        return workers[0].model


async def test_a_card_says_what_the_file_is(bus: Bus, settings: BusSettings, tmp_path: Path) -> None:
    card = await card_of(bus, settings, write_byte_model(tmp_path / "m.gguf"))
    assert (card.architecture, card.ftype, card.quantization) == ("llama", "all F32", "F32")
    assert 0 <= time.time() - card.modified_at < 60
    assert (card.can_generate, card.can_infill, card.can_call, card.can_reason) == (True, False, False, False)
    assert len(card.to_json()) < 2000, "it is announced twice a second"


@pytest.mark.parametrize(("write", "can"), [(write_infill_model, True), (write_encoder_model, False)])
async def test_a_card_says_what_a_model_was_taught(
    bus: Bus, settings: BusSettings, tmp_path: Path, write: Callable[[Path], Path], can: bool
) -> None:
    card = await card_of(bus, settings, write(tmp_path / "m.gguf"))
    assert (card.can_generate, card.can_infill) == (can, can)
