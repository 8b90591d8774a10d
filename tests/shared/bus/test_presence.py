"""Who is alive is known without anybody noticing a death."""

from __future__ import annotations

from shared.bus import Bus, ModelCard, SlotState, WorkerState
from tests.shared.bus.conftest import Behind, eventually

CARD = ModelCard(
    name="m/é", path="/models/m.gguf", n_ctx=64, n_ctx_train=128, n_vocab=10, n_embd=4, n_params=100, size=400
)


def a_worker(name: str, **fields: object) -> WorkerState:
    state = WorkerState(
        id=name,
        model=CARD,
        status="ready",
        started_at=1.5,
        slots=(SlotState(id=0, is_processing=True, job_id="job_0_a", n_ctx=64),),
        n_slots=1,
        host="host",
        pid=1,
        build="0.1.0",
    )
    return state.model_copy(update=fields)


async def test_workers_are_shown_as_they_announced_themselves_sorted_by_id(bus: Bus) -> None:
    assert await bus.presence.workers() == []
    states = [a_worker(name) for name in ("w:2", "w:1", "w{3}")]
    for state in states:
        await bus.presence.announce(state)
    draining = a_worker("w:1", status="draining", batch=7)
    await bus.presence.announce(draining)
    assert await bus.presence.workers() == [draining, states[0], states[2]]


async def test_a_worker_that_leaves_is_gone_and_its_model_is_remembered(bus: Bus) -> None:
    await bus.presence.announce(a_worker("w1"))
    await bus.presence.leave("w1")
    await bus.presence.leave("w1")
    assert await bus.presence.workers() == []
    assert await bus.presence.models() == {CARD.name: CARD}


async def test_a_silent_worker_disappears(bus: Bus) -> None:
    await bus.presence.announce(a_worker("w1"), ttl_s=0.05)
    await bus.presence.announce(a_worker("w2"))

    async def is_gone() -> bool:
        return [state.id for state in await bus.presence.workers()] == ["w2"]

    await eventually(is_gone)


async def test_a_model_is_described_by_its_last_worker(bus: Bus) -> None:
    newer = CARD.model_copy(update={"n_ctx": 32})
    await bus.presence.announce(a_worker("w1"))
    await bus.presence.announce(a_worker("w2", model=newer))
    assert await bus.presence.models() == {CARD.name: newer}


async def test_a_worker_without_its_model_does_not_replace_what_is_known_of_it(bus: Bus) -> None:
    unknown = CARD.model_copy(update={"n_ctx": 0, "n_vocab": 0})
    await bus.presence.announce(a_worker("w1", model=unknown, status="loading", progress=0.5))
    assert await bus.presence.models() == {CARD.name: unknown}
    await bus.presence.announce(a_worker("w2"))
    await bus.presence.announce(a_worker("w1", model=unknown, status="failed", failure="no such file"))
    assert await bus.presence.models() == {CARD.name: CARD}


async def test_workers_of_long_ago_are_forgotten_by_the_index(bus: Bus, behind: Behind) -> None:
    await behind.client.zadd(behind.keys.workers, {"ancient": 1.0})
    await bus.presence.announce(a_worker("w1"))
    assert await behind.client.zrange(behind.keys.workers, 0, -1) == [b"w1"]


async def test_a_neighbour_of_a_newer_version_is_passed_over(bus: Bus, behind: Behind) -> None:
    await bus.presence.announce(a_worker("w1"))
    newer = a_worker("w2").to_json().replace('"ready"', '"dreaming"')
    await behind.client.set(behind.keys.worker("w2"), newer, px=60_000)
    await behind.client.zadd(behind.keys.workers, {"w2": 2e9})
    await behind.client.zadd(behind.keys.served, {"newer": 1})
    await behind.client.set(behind.keys.model("newer"), '{"name": 7}', ex=9)
    assert [state.id for state in await bus.presence.workers()] == ["w1"]
    assert set(await bus.presence.models()) == {CARD.name}
