"""What a worker says of itself."""

from __future__ import annotations

import asyncio
import os
from typing import cast

from shared.bus import Bus, Recent, SlotState, WorkerState
from shared.jobs import Completion, Constraint, Image, Media, Sampling
from shared.work import Work
from worker.engine import SlotSnapshot
from worker.presence import Announcer, Slots, Window, without_words


class Wall:
    """Hears what is announced."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[WorkerState] = asyncio.Queue()
        self.presence = self.tally = self.annex = self
        self.marks = frozenset({"a"})

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


def test_what_all_may_see_of_a_request_has_nobodys_words() -> None:
    asked = Completion(
        prompts=("secret",),
        system_prompt="secret",
        n_predict=5,
        stop=("secret",),
        constraint=Constraint(syntax="gbnf", text="secret"),
        media=Media(mark="secret!!", images=(Image(data="secret"),)),
        sampling=Sampling(
            temperature=0.5,
            seed=3,
            penalty_prompt="secret",
            logit_bias=(("secret", 1.0),),
            dry_sequence_breakers=("secret",),
        ),
    )
    slot = SlotState(id=0, is_processing=True, n_ctx=8, asked=without_words(asked))
    assert slot.model_dump()["asked"] == {
        "n_predict": 5,
        "sampling": {"temperature": 0.5, "seed": 3},
    }
    assert SlotState.from_json(slot.to_json()) == slot


def test_what_was_done_a_minute_ago_is_not_recent() -> None:
    window = Window()
    assert window.since(Work(), 1000.0) == Recent()
    done = Work(n_prompt_tokens=10, prompt_s=2.0, n_predicted_tokens=5, n_begun=1, predicted_s=1.0)
    told = Recent(prompt_tokens=10, prompt_s=2.0, predicted_tokens=4, predicted_s=1.0)
    assert window.since(done, 1001.0) == told
    assert window.since(done, 1060.0) == told
    assert window.since(done, 1061.0) == Recent()


def test_a_slot_tells_of_the_request_that_is_there_now() -> None:
    slots = Slots()
    for n_predict in (5, 5, 6):
        request = Completion(prompts=("a",), n_predict=n_predict)
        told = [slots.state(SlotSnapshot(0, is_processing=True, n_ctx=8, request=request)) for _ in range(2)]
        assert [each.asked and each.asked.n_predict for each in told] == [n_predict] * 2
        assert told[0].asked is told[1].asked, "it is worked out once"
    assert slots.state(SlotSnapshot(1, is_processing=False, n_ctx=8)).asked is None
