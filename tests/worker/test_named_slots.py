"""A slot of one's choice, over the bus: which worker and which slot a job runs in, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest

from shared.bus import Bus
from shared.jobs import Completion
from tests.worker.crew import WILD, heard_of, queued
from worker.rules import Rules


def completion(id_slot: int = -1, *, n: int = 1, n_predict: int = 8) -> Completion:
    return Completion(prompts=("Once upon",), n_predict=n_predict, n=n, id_slot=id_slot, sampling=WILD)


@pytest.mark.parametrize(("asked", "got"), [(0, 0), (1, 1), (2, 0), (1_000_000_001, 1)])
async def test_a_job_runs_in_the_slot_that_it_names_modulo_those_there_are(
    bus: Bus, hire: Any, asked: int, got: int
) -> None:
    await hire("w1", n_slots=2)
    heard = await heard_of(bus, completion(asked), worker="w1")
    assert [answer.id_slot for answer in heard.answers] == [got]


async def test_a_job_that_was_left_for_anybody_has_that_slot_where_it_is_claimed(bus: Bus, hire: Any) -> None:
    await hire("w1", n_slots=4)
    assert [answer.id_slot for answer in (await heard_of(bus, completion(3))).answers] == [3]


def test_only_the_first_sequence_of_a_job_is_bound() -> None:
    rules = Rules(n_ctx=8, n_slots=4)
    assert [rules.slot_of(completion(6, n=3), index) for index in range(3)] == [2, None, None]
    assert rules.slot_of(completion(), 0) is None


async def test_choices_of_one_slot_end_however_often(bus: Bus, hire: Any) -> None:
    """Only the first is bound to it."""
    await hire("w1", n_slots=2)
    for _ in range(3):
        heard = await heard_of(bus, completion(0, n=5), worker="w1")
        assert len(heard.answers) == 5
        assert heard.answers[0].id_slot == 0


async def test_a_stream_in_a_slot_of_a_killed_worker_goes_on_in_another(bus: Bus, hire: Any) -> None:
    await hire("w1", n_slots=2)
    doomed = await hire("w2", n_slots=2)
    request = completion(1, n_predict=300)
    whole = await heard_of(bus, request, worker="w1")
    async with queued(bus, request, worker="w2") as listener:
        await listener.until(lambda: len(listener.numbers) >= 5)
        await doomed.kill()
        await listener.to_the_end()
    assert listener.finished and listener.finished.worker == "w1"
    assert listener.text(0) == whole.text(0)
    assert listener.numbers == list(range(1, len(listener.numbers) + 1))
    assert listener.answers[0].id_slot == 1


async def test_one_that_waited_for_a_killed_worker_runs_elsewhere(bus: Bus, hire: Any) -> None:
    doomed = await hire("w2", n_slots=1)
    async with queued(bus, completion(0, n_predict=300), worker="w2") as first:
        await first.until(lambda: len(first.numbers) >= 1)
        async with queued(bus, completion(0), worker="w2") as second:
            await hire("w1", n_slots=1)
            await doomed.kill()
            await second.to_the_end()
            await first.to_the_end()
    assert {each.finished.worker for each in (first, second) if each.finished} == {"w1"}
