"""What workers have done is counted once, and stays when they are gone."""

from __future__ import annotations

from shared.bus import Bus
from shared.errors import BusUnavailable
from shared.work import COUNTS, Work
from tests.shared.bus.conftest import Behind
from tests.shared.bus.test_lost_replies import Cutter, cutter

__all__ = ["cutter"]


async def test_totals_are_the_sum_of_what_each_worker_said_last(bus: Bus) -> None:
    assert await bus.tally.totals(["m"]) == [Work()]
    await bus.tally.say("w1", "m", Work(n_prompt_tokens=3, prompt_s=0.1, n_tokens_most=9, n_decodes=1))
    await bus.tally.say("w2", "m", Work(n_prompt_tokens=4, prompt_s=0.2, n_tokens_most=5, n_decodes=1))
    await bus.tally.say("w1", "m", Work(n_prompt_tokens=10, prompt_s=0.3, n_tokens_most=9, n_decodes=2))
    await bus.tally.say("w3", "other/é", Work(n_decodes=7))
    [total, other, none] = await bus.tally.totals(["m", "other/é", "unheard of"])
    assert (total.n_prompt_tokens, total.n_decodes, total.n_tokens_most) == (14, 3, 9)
    assert abs(total.prompt_s - 0.5) < 1e-12
    assert (other, none) == (Work(n_decodes=7), Work())


async def test_what_is_said_twice_counts_once(cutter: tuple[Cutter, Bus]) -> None:
    cut, bus = cutter
    await bus.tally.say("w1", "m", Work(n_decodes=1))
    cut.n_to_cut = 1
    for _ in range(3):
        try:
            await bus.tally.say("w1", "m", Work(n_decodes=5, n_prompt_tokens=2**40))
        except BusUnavailable:
            continue
    assert cut.n_cuts == 1
    assert await bus.tally.totals(["m"]) == [Work(n_decodes=5, n_prompt_tokens=2**40)]


async def test_totals_never_shrink_and_large_ones_are_exact(bus: Bus) -> None:
    huge = 2**52 + 1
    await bus.tally.say("w1", "m", Work(n_prompt_tokens=huge, n_tokens_most=10))
    await bus.tally.say("w1", "m", Work(n_prompt_tokens=3, n_tokens_most=4))
    assert await bus.tally.totals(["m"]) == [Work(n_prompt_tokens=huge, n_tokens_most=10)]


async def test_workers_of_long_ago_are_forgotten_and_their_part_stays(bus: Bus, behind: Behind) -> None:
    key = behind.keys.totals("m")
    await bus.tally.say("old", "m", Work(n_decodes=5))
    await bus.tally.say("young", "m", Work(n_decodes=2))
    await behind.client.hset(key, "at:old", 1)
    await bus.tally.say("young", "m", Work(n_decodes=3))
    assert await behind.client.hexists(key, "said:old"), "nobody came since"
    await bus.tally.say("new", "m", Work(n_decodes=1))
    fields = {field.decode() for field in await behind.client.hkeys(key)}
    assert {field for field in fields if ":" in field} == {"said:young", "at:young", "said:new", "at:new"}
    assert await bus.tally.totals(["m"]) == [Work(n_decodes=9)]
    assert 0 < await behind.client.ttl(key) <= 86400


async def test_an_idle_worker_is_not_forgotten_and_counts_once(bus: Bus, behind: Behind) -> None:
    await bus.tally.say("idle", "m", Work(n_decodes=5))
    await behind.client.hset(behind.keys.totals("m"), "at:idle", 1)
    await bus.tally.say("idle", "m", Work(n_decodes=5))
    await bus.tally.say("new", "m", Work(n_decodes=1))
    await bus.tally.say("idle", "m", Work(n_decodes=6))
    assert await bus.tally.totals(["m"]) == [Work(n_decodes=7)]


def test_work_adds_up() -> None:
    one, other = Work(n_decodes=3, queue_s=0.5, n_tokens_most=7), Work(n_decodes=1, n_tokens_most=9)
    assert one + other == Work(n_decodes=4, queue_s=0.5, n_tokens_most=9)
    assert one + other - other == Work(n_decodes=3, queue_s=0.5, n_tokens_most=9)
    assert len(COUNTS) == 9
