"""What a worker says of itself."""

from __future__ import annotations

import asyncio
import os
from typing import cast

from shared.bus import Bus, WorkerState
from worker.presence import Announcer


class Wall:
    """Hears what is announced."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[WorkerState] = asyncio.Queue()
        self.presence = self.tally = self

    async def announce(self, state: WorkerState, ttl_s: float) -> None:
        self.heard.put_nowait(WorkerState.from_json(state.to_json()))

    async def leave(self, worker_id: str) -> None:
        return


async def test_what_a_load_is_at_is_told_while_it_lasts() -> None:
    wall = Wall()
    announcer = Announcer(cast(Bus, wall), "w", ("m",), "m.gguf", 1)
    announcer.loading(0.5, "it is being fetched")
    announcing = asyncio.create_task(announcer.run())
    state = await asyncio.wait_for(wall.heard.get(), 5)
    assert (state.progress, state.stage) == (0.5, "it is being fetched")
    announcer.loading(0.0, "it is being fetched; nobody answers")
    announcer.draining()
    assert (await asyncio.wait_for(wall.heard.get(), 5)).stage == ""
    announcing.cancel()
    await asyncio.wait((announcing,))


async def test_a_file_whose_name_is_no_utf_8_can_be_told_of() -> None:
    wall, name = Wall(), os.fsdecode(b"m\xff")
    announcer = Announcer(cast(Bus, wall), "w", (name, name), f"{name}.gguf", 1)
    announcing = asyncio.create_task(announcer.run())
    state = await asyncio.wait_for(wall.heard.get(), 5)
    assert (state.model.name, state.model.aliases, state.model.path) == ("m\ufffd", ("m\ufffd",), "m\ufffd.gguf")
    assert announcer.name == "m\ufffd"
    announcer.failed(f"cannot read {name}")
    announcing.cancel()
    await asyncio.wait((announcing,))
    assert wall.heard.get_nowait().failure == "cannot read m\ufffd"
