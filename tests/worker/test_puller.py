"""How much a worker takes on, and how it hears of work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shared.bus import EmbeddedServer, LeaseKeeper, open_bus
from shared.settings import BusSettings
from tests.chaos.engine import ByteModel, ScriptedEngine
from worker.engine import EngineConfig
from worker.held import HeldJobs
from worker.intake import Registrar
from worker.publisher import Publisher
from worker.puller import Hands, Puller, Station, bulk_window


@pytest.mark.parametrize(("n_waiting", "window"), [(0, 1), (4, 1), (8, 2), (20, 5), (32, 8), (10_000, 8)])
def test_the_window_beyond_the_slots_shrinks_with_the_backlog(n_waiting: int, window: int) -> None:
    assert bulk_window(n_waiting, n_slots=8) == window


async def test_a_server_that_is_away_at_the_start_is_listened_to_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.bus.subscriber.CONNECT_TIMEOUT_S", 0.05)
    settings = BusSettings(redis_url=f"unix://{tmp_path}/valkey.sock")
    async with open_bus(settings, name="test") as bus:
        publisher = Publisher(bus.queue, held := HeldJobs(), "w")
        engine = ScriptedEngine(EngineConfig(Path("x.gguf")), publisher.post, note=lambda _: None)
        keeper = LeaseKeeper(settings, "w", is_alive=lambda: True, on_cancel=publisher.cancel, on_lost=publisher.lose)
        puller = Puller(
            bus.queue,
            bus.log,
            Hands(engine, held, publisher, keeper),
            Registrar(ByteModel(Path("x.gguf")), n_ctx=64, n_ubatch=64),
            Station("w", "m", n_slots=1, lease_s=settings.lease_s),
        )
        puller.sweep = (has_heard := asyncio.Event()).set
        with capture_logs() as lines:
            listening = asyncio.create_task(puller.listen())
            async with asyncio.timeout(10):
                while not any(line["event"] == "no wake-ups can be heard" for line in lines):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        with EmbeddedServer() as server:
            monkeypatch.undo()
            server.start(tmp_path)
            await asyncio.wait_for(has_heard.wait(), 10)
            listening.cancel()
            await asyncio.wait((listening,))
