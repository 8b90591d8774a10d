"""Who works on a batch: one at a time, whoever died with it before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.batches import Segment
from shared.bus import Bus, Hold
from tests.shared.bus.bulk import RETENTION_S, fed, held, jobs_of, lines, made, planned, record, work
from tests.shared.bus.conftest import Behind, eventually

AGES_S = 3600.0


async def let_rest_be_over(behind: Behind, batch_id: str) -> None:
    """Or the lease of who holds it."""
    await behind.client.zadd(f"{behind.keys.prefix(0)}attention", {batch_id: 1}, xx=True)


async def is_due(bus: Bus, batch_id: str) -> bool:
    return any(due.batch_id == batch_id for due in await bus.batches.due())


async def test_a_new_batch_is_due_at_once_and_told_of_until_somebody_holds_it(bus: Bus) -> None:
    batch = await made(bus)
    [due] = await bus.batches.due()
    assert await bus.batches.due() == [due]
    assert await bus.batches.hold(batch.id, due.epoch, 5.0)
    assert await bus.batches.due() == []


async def test_of_many_who_come_one_holds_it(bus: Bus) -> None:
    batch = await made(bus)
    [due] = await bus.batches.due()
    holds = await asyncio.gather(*(bus.batches.hold(batch.id, due.epoch, 5.0) for _ in range(8)))
    assert sum(hold is not None for hold in holds) == 1


async def test_who_comes_late_holds_nothing(bus: Bus) -> None:
    batch = await made(bus)
    [due] = await bus.batches.due()
    hold = await held(bus, batch)
    assert await bus.batches.hold(batch.id, due.epoch, 5.0) is None
    assert await bus.batches.hold(batch.id, due.epoch + 1, 5.0) is None, "it is not due"
    await bus.batches.rest(hold, 0.0)
    assert await bus.batches.hold(batch.id, due.epoch, 5.0) is None, "others have had it since"
    assert (await held(bus, batch)).mark != hold.mark


async def test_a_holder_that_fell_silent_is_noticed_and_changes_nothing_any_more(bus: Bus) -> None:
    batch = await made(bus)
    stale = await held(bus, batch, lease_s=0.05)
    await eventually(lambda: is_due(bus, batch.id))
    hold = await held(bus, batch)
    assert not await bus.batches.renew(stale)
    assert not await bus.batches.planned(stale, n_total=9, n_planned=9)
    assert not await bus.batches.reject(stale, (), RETENTION_S)
    await bus.batches.rest(stale, 0.0)
    assert not await is_due(bus, batch.id), "the other one has it"

    assert await bus.batches.planned(hold, n_total=2, n_planned=2, model="m")
    assert await bus.batches.feed(stale, lines(batch, [0])) == (0, None, False)
    assert await bus.batches.feed(hold, lines(batch, [0, 1])) == (2, None, True)
    assert not await bus.batches.finalize(stale, "over")
    assert await bus.batches.finalize(hold, "over")
    await work(bus, 2)
    segment = Segment(number=0, n_output=2, output_bytes=2)
    everything: dict[str, Any] = {"job_ids": jobs_of(batch, [0, 1]), "n_completed": 2, "n_failed": 0}
    assert not await bus.batches.collect(stale, segment, **everything)
    assert await bus.batches.collect(hold, segment, **everything)
    assert not await bus.batches.collect(stale, segment, **everything), "also what has been said is not its word"
    assert not await bus.batches.finish(stale, RETENTION_S)
    assert await bus.batches.finish(hold, RETENTION_S)


async def test_a_holder_that_renews_keeps_it(bus: Bus, behind: Behind) -> None:
    batch = await made(bus)
    hold = await held(bus, batch)
    for _ in range(3):
        await let_rest_be_over(behind, batch.id)
        assert await is_due(bus, batch.id)
        assert await bus.batches.renew(hold), "nobody has taken it: it is still its own"
        assert not await is_due(bus, batch.id)


async def test_a_hold_that_has_rested_is_good_for_nothing(bus: Bus) -> None:
    _, hold = await planned(bus, 1)
    await bus.batches.rest(hold, AGES_S)
    assert not await bus.batches.renew(hold)
    assert not await bus.batches.finalize(hold, "expired")


class TestRest:
    async def test_it_is_due_after_its_time(self, bus: Bus, behind: Behind) -> None:
        batch, hold = await planned(bus, 1)
        await bus.batches.rest(hold, AGES_S)
        assert not await is_due(bus, batch.id)
        await let_rest_be_over(behind, batch.id)
        assert await is_due(bus, batch.id)

    async def test_a_cancel_ends_it(self, bus: Bus) -> None:
        batch, hold = await planned(bus, 1)
        await bus.batches.rest(hold, AGES_S)
        await bus.batches.cancel(batch.id)
        assert await is_due(bus, batch.id)

    async def test_after_a_cancel_that_its_holder_may_not_know_of_there_is_none(self, bus: Bus) -> None:
        batch, hold = await planned(bus, 1)
        await bus.batches.cancel(batch.id)
        assert not await is_due(bus, batch.id), "somebody is at work on it"
        await bus.batches.rest(hold, AGES_S)
        hold = await held(bus, batch)
        await bus.batches.rest(hold, AGES_S)
        assert not await is_due(bus, batch.id), "now it is known"

    async def test_the_end_of_its_window_ends_it(self, bus: Bus) -> None:
        batch, hold = await planned(bus, 1, window_s=0.5)
        await bus.batches.rest(hold, AGES_S)
        assert not await is_due(bus, batch.id)
        await eventually(lambda: is_due(bus, batch.id))
        await bus.batches.rest(await held(bus, batch), AGES_S)
        assert not await is_due(bus, batch.id), "once"

    async def test_lines_that_end_end_it(self, bus: Bus) -> None:
        batch, hold = await fed(bus, 4)
        await bus.batches.rest(hold, AGES_S, n_ended=2)
        await work(bus, 1)
        assert not await is_due(bus, batch.id)
        await work(bus, 1)
        assert await is_due(bus, batch.id)

    async def test_lines_that_ended_meanwhile_end_it(self, bus: Bus) -> None:
        batch, hold = await fed(bus, 4)
        await work(bus, 2)
        await bus.batches.rest(hold, AGES_S, n_ended=2)
        hold = await held(bus, batch)
        await bus.batches.rest(hold, AGES_S)
        await work(bus, 2)
        assert not await is_due(bus, batch.id), "it did not ask to be woken"

    async def test_a_lines_end_takes_a_batch_from_nobody(self, bus: Bus) -> None:
        batch, hold = await fed(bus, 2)
        await bus.batches.rest(hold, 0.0, n_ended=1)
        await held(bus, batch)
        await work(bus, 1)
        assert not await is_due(bus, batch.id)


async def test_those_that_wait_longest_come_first_and_all_come(bus: Bus, behind: Behind) -> None:
    batches = [await made(bus) for _ in range(6)]
    for place, batch in enumerate(reversed(batches)):
        await behind.client.zadd(f"{behind.keys.prefix(0)}attention", {batch.id: place + 1})
    seen: list[str] = []
    for _ in range(12):
        due = await bus.batches.due(2)
        for each in due:
            hold = await bus.batches.hold(each.batch_id, each.epoch, 5.0)
            assert isinstance(hold, Hold)
            await bus.batches.rest(hold, 0.0)
            seen.append(each.batch_id)
    assert seen[:6] == [batch.id for batch in reversed(batches)]
    assert all(seen.count(batch.id) >= 3 for batch in batches)


async def test_a_clock_that_is_set_back_lets_no_batch_rest_for_long(bus: Bus, behind: Behind) -> None:
    """As if it had been an hour later when its rest began."""
    batch, hold = await planned(bus, 1)
    await bus.batches.rest(hold, AGES_S)
    await behind.client.zincrby(f"{behind.keys.prefix(0)}attention", AGES_S * 1000, batch.id)
    await bus.batches.rest(await held(bus, batch), AGES_S)
    assert not await is_due(bus, batch.id)


async def test_what_is_no_batch_any_more_is_not_told_of(bus: Bus, behind: Behind) -> None:
    batch = await made(bus)
    await behind.client.delete(behind.keys.batch(batch.id))
    assert await bus.batches.due() == []
    assert not await behind.client.zcard(f"{behind.keys.prefix(0)}attention")


async def test_an_ended_batch_cannot_be_held(bus: Bus, behind: Behind) -> None:
    batch = await made(bus)
    await bus.batches.reject(await held(bus, batch), (), RETENTION_S)
    await let_rest_be_over(behind, batch.id)
    assert await bus.batches.due() == []
    assert await bus.batches.hold(batch.id, 1, 5.0) is None
    assert (await record(bus, batch)).status.is_ended


@pytest.mark.parametrize("name", ["", "batch_0_" + "0" * 24])
async def test_nobody_can_hold_what_is_not_there(bus: Bus, name: str) -> None:
    if not name:
        with pytest.raises(ValueError, match="not an id"):
            await bus.batches.hold(name, 0, 5.0)
    else:
        assert await bus.batches.hold(name, 0, 5.0) is None
