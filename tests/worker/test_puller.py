"""How much a worker takes on, and how it hears of work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shared.bus import Claimed, EmbeddedServer, Lease, LeaseKeeper, Wanted, open_bus
from shared.events import Score
from shared.jobs import Completion, Constraint, Embedding, Job, Lane, Request, SlotAction, Tokenize
from shared.settings import BusSettings
from tests.chaos.engine import ByteModel, ScriptedEngine
from tests.worker.test_held import answer
from worker.demand import EXAMINED_S, INPUT_PLACES, MOST_EXAMINED, OWN_JOBS, QUICK_JOBS, bulk_window
from worker.engine import EngineConfig, EngineSnapshot, SlotSnapshot
from worker.held import Held, HeldJobs
from worker.intake import Registrar
from worker.publisher import Publisher
from worker.puller import Hands, Puller, Station
from worker.rules import Rules


def wants(**fields: int) -> Wanted:
    """Room for inputs, which slots do not bear upon, is what it is while there are none."""
    return Wanted(**{"inputs": INPUT_PLACES, "bulk_inputs": INPUT_PLACES} | fields)


@pytest.mark.parametrize(("n_waiting", "window"), [(0, 1), (4, 1), (8, 2), (20, 5), (32, 8), (10_000, 8)])
def test_the_window_beyond_the_slots_shrinks_with_the_backlog(n_waiting: int, window: int) -> None:
    assert bulk_window(n_waiting, n_slots=8) == window


@asynccontextmanager
async def pulling(settings: BusSettings, n_slots: int = 1) -> AsyncIterator[tuple[Puller, HeldJobs]]:
    async with open_bus(settings, name="test") as bus:
        publisher = Publisher(bus.queue, held := HeldJobs(), "w")
        engine = ScriptedEngine(EngineConfig(Path("x.gguf")), publisher.post, note=lambda _: None)
        keeper = LeaseKeeper(settings, "w", is_alive=lambda: True, on_cancel=publisher.cancel, on_lost=publisher.lose)
        yield (
            Puller(
                bus.queue,
                bus.log,
                Hands(engine, held, publisher, keeper),
                Registrar(ByteModel(Path("x.gguf")), Rules(n_ctx=64)),
                Station("w", "m", n_slots=n_slots, lease_s=settings.lease_s),
            ),
            held,
        )


def claimed(
    number: int,
    request: Request,
    deaths: int = 0,
    *,
    is_own: bool = False,
    lane: Lane = Lane.INTERACTIVE,
    queue: str = "",
) -> Held:
    job = Job(id=f"job_0_{number}", model="m", request=request, lane=lane)
    lease = Lease(job.id, f"w:{number}:0")
    times = {"enqueued_at": 0.0, "deadline_at": 9.0, "now": 1.0}
    return Held(Claimed(job, lease, attempt=1, deaths=deaths, n_events=0, is_own=is_own, queue=queue, **times))


async def test_what_is_held_is_wanted_no_more(tmp_path: Path) -> None:
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=4) as (puller, held):
        assert puller.demand.wanted() == wants(own=OWN_JOBS, quick=QUICK_JOBS, interactive=4, bulk=5, suspects=1)
        held.add(claimed(1, Completion(prompts=("a",)), deaths=1))
        held.add(claimed(2, Tokenize(content="a")))
        assert puller.demand.wanted() == wants(own=OWN_JOBS, quick=QUICK_JOBS - 1, interactive=3, bulk=4, suspects=1)
        held.add(claimed(3, Completion(prompts=("a",)), deaths=2))
        assert puller.demand.wanted() == wants(own=OWN_JOBS, quick=QUICK_JOBS - 1, interactive=2, bulk=3, suspects=0)


async def test_a_job_counts_as_many_slots_as_it_has_sequences_to_go(tmp_path: Path) -> None:
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=4) as (puller, held):
        held.add(pair := claimed(1, Completion(prompts=("a",), n=2)))
        assert puller.demand.wanted() == wants(own=OWN_JOBS, quick=QUICK_JOBS, interactive=2, bulk=3)
        held.add(many := claimed(2, Completion(prompts=("a", "b"), n=8)))
        assert puller.demand.wanted() == wants(own=OWN_JOBS, quick=QUICK_JOBS, interactive=0, bulk=0)
        for index in range(15):
            many.hear(answer(index))
        assert puller.demand.wanted() == wants(own=OWN_JOBS, quick=QUICK_JOBS, interactive=1, bulk=2)
        pair.hear(answer(0))
        assert puller.demand.wanted() == wants(own=OWN_JOBS, quick=QUICK_JOBS, interactive=2, bulk=3)


async def test_inputs_take_no_slot_but_places_as_long_as_they_are_to_be_embedded(tmp_path: Path) -> None:
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=4) as (puller, held):
        held.add(few := claimed(1, Embedding(inputs=("a",) * 10)))
        held.add(claimed(2, Embedding(inputs=("a" * 1000, "b")), lane=Lane.BULK))
        n_free, n_free_for_bulk = INPUT_PLACES - 10, INPUT_PLACES - 5
        common = {"own": OWN_JOBS, "quick": QUICK_JOBS, "interactive": 4, "bulk": 5}
        assert puller.demand.wanted() == Wanted(**common, inputs=n_free, bulk_inputs=0)
        assert puller.demand.wanted(may_share=True) == Wanted(**common, inputs=n_free, bulk_inputs=n_free_for_bulk)
        few.expected = 10
        for index in range(9):
            few.hear(Score(index=index, prompt_tokens=1, score=0.0))
        assert puller.demand.wanted().inputs == INPUT_PLACES - 1
        held.remove("job_0_1")
        assert puller.demand.wanted() == Wanted(**common, inputs=INPUT_PLACES, bulk_inputs=n_free_for_bulk)


async def test_a_job_of_more_inputs_than_there_are_places_lets_one_other_in(tmp_path: Path) -> None:
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=4) as (puller, held):
        held.add(claimed(1, Embedding(inputs=("a",) * 300)))
        assert (puller.demand.wanted().inputs, puller.demand.wanted(may_share=True).inputs) == (0, 1)
        held.add(claimed(2, Embedding(inputs=("a",))))
        assert puller.demand.wanted(may_share=True).inputs == 0


async def test_inputs_that_came_from_a_lane_take_its_slots(tmp_path: Path) -> None:
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=4) as (puller, held):
        held.add(claimed(1, Embedding(inputs=("a",)), queue="interactive"))
        assert puller.demand.wanted() == wants(own=OWN_JOBS, quick=QUICK_JOBS, interactive=3, bulk=4)


async def test_of_all_that_want_one_slot_one_has_it_at_a_time(tmp_path: Path) -> None:
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=4) as (puller, held):
        for number, slot in enumerate((0, 0, 4, 8, 1)):
            held.add(claimed(number, Completion(prompts=("a",), id_slot=slot), is_own=True))
        assert puller.demand.wanted() == wants(own=OWN_JOBS - 5, quick=QUICK_JOBS, interactive=2, bulk=3)
        held.add(claimed(6, Completion(prompts=("a",), id_slot=1, n=2), is_own=True))
        assert puller.demand.wanted() == wants(own=OWN_JOBS - 6, quick=QUICK_JOBS, interactive=1, bulk=2)


async def test_bulk_in_slots_of_its_own_keeps_no_person_out(tmp_path: Path) -> None:
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=2) as (puller, held):
        for slot in (0, 1):
            held.add(claimed(slot, Completion(prompts=("a",), id_slot=slot), is_own=True, lane=Lane.BULK))
        assert (puller.demand.wanted().interactive, puller.demand.wanted().bulk) == (2, 1)
        held.add(claimed(2, Completion(prompts=("a",), id_slot=0), is_own=True))
        assert (puller.demand.wanted().interactive, puller.demand.wanted().bulk) == (1, 1), (
            "one of bulk waits for a person's slot"
        )


@pytest.mark.parametrize(
    ("lane", "of_the_other", "free"),
    [
        (Lane.INTERACTIVE, Lane.INTERACTIVE, (1, 2)),
        (Lane.BULK, Lane.INTERACTIVE, (1, 2)),
        (Lane.BULK, Lane.BULK, (2, 2)),
        (Lane.INTERACTIVE, Lane.BULK, (1, 1)),  # a person has the slot of bulk at once
    ],
)
async def test_who_waits_for_a_slot_that_another_has_keeps_nobody_out_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lane: Lane, of_the_other: Lane, free: tuple[int, int]
) -> None:
    running = SlotSnapshot(0, is_processing=True, n_ctx=64, job_id="job_0_1")
    monkeypatch.setattr(ScriptedEngine, "snapshot", lambda _: EngineSnapshot(slots=(running,)))
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=2) as (puller, held):
        held.add(claimed(1, Completion(prompts=("a",)), lane=of_the_other))
        held.add(claimed(2, Completion(prompts=("a",), id_slot=0), is_own=True, lane=lane))
        assert (puller.demand.wanted().interactive, puller.demand.wanted().bulk) == free


async def test_what_waits_for_a_busy_slot_keeps_no_quick_work_out(tmp_path: Path) -> None:
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=4) as (puller, held):
        for number in range(OWN_JOBS + 1):
            held.add(claimed(number, SlotAction(action="erase", slot=0), is_own=True))
        assert puller.demand.wanted() == wants(own=0, quick=QUICK_JOBS, interactive=4, bulk=5)


async def test_while_a_constraint_is_tried_others_can_have_the_slot(tmp_path: Path) -> None:
    request = Completion(prompts=("a",), constraint=Constraint(syntax="gbnf", text='root ::= "a"'))
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=4) as (puller, held):
        held.add(slow := claimed(1, request))
        assert puller.demand.wanted().interactive == 3, "most constraints are tried in a moment"
        slow.held_since -= EXAMINED_S
        assert puller.demand.wanted().interactive == 4
        slow.is_taken_in = True
        assert puller.demand.wanted().interactive == 3
        for number in range(MOST_EXAMINED + 2):
            held.add(slow := claimed(10 + number, request))
            slow.held_since -= EXAMINED_S
        assert puller.demand.wanted().interactive == 1


async def test_a_constraint_is_not_tried_for_a_job_that_is_gone_nor_by_a_worker_that_leaves(tmp_path: Path) -> None:
    request = Completion(prompts=("a",), constraint=Constraint(syntax="gbnf", text='root ::= "a"'))
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock")) as (puller, held):
        await puller._take_in(claimed(1, request).claimed)
        assert not len(held)
        held.add(late := claimed(0, request))
        puller.close()
        await puller._take_in(late.claimed)
        assert late.is_over and not late.is_complete, "it goes back, and is no failure"
        held.add(plain := claimed(1, Completion(prompts=("a",))))
        await puller._take_in(plain.claimed)
        assert plain.is_taken_in


async def test_a_job_larger_than_its_worker_lets_one_other_in(tmp_path: Path) -> None:
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=4) as (puller, held):
        held.add(many := claimed(1, Completion(prompts=("a",), n=9)))
        assert (puller.demand.wanted().interactive, puller.demand.wanted(may_share=True).interactive) == (0, 1)
        held.add(claimed(2, Completion(prompts=("a",))))
        assert puller.demand.wanted(may_share=True).interactive == 0
        held.remove("job_0_2")
        for index in range(5):
            many.hear(answer(index))
        assert puller.demand.wanted(may_share=True).interactive == 0  # all that is left of it runs


async def test_no_more_bulk_is_wanted_while_some_is_parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=4) as (puller, _):
        monkeypatch.setattr(ScriptedEngine, "snapshot", lambda _: EngineSnapshot(n_parked=1, n_parked_for_any=1))
        assert puller.demand.wanted() == wants(own=OWN_JOBS, quick=QUICK_JOBS, interactive=4, bulk=0)
        monkeypatch.setattr(ScriptedEngine, "snapshot", lambda _: EngineSnapshot(n_parked=1))
        assert puller.demand.wanted().bulk == 5, "what waits for a slot of its own goes into no other"


async def test_while_people_have_all_slots_bulk_is_claimed_at_intervals_alone(tmp_path: Path) -> None:
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=2) as (puller, held):
        held.add(claimed(1, Completion(prompts=("a",), n=2)))
        assert (puller.demand.wanted().bulk, puller.demand.wanted(may_share=True).bulk) == (0, 1)


async def test_after_some_was_given_back_no_bulk_is_wanted_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pulling(BusSettings(redis_url=f"unix://{tmp_path}/nobody.sock"), n_slots=4) as (puller, _):
        puller.demand.rest()
        for may_share in (False, True):
            assert puller.demand.wanted(may_share=may_share) == wants(
                own=OWN_JOBS, quick=QUICK_JOBS, interactive=4, bulk=0
            )
        monkeypatch.setattr("worker.demand.REST_S", 0.0)
        puller.demand.rest()
        assert puller.demand.wanted().bulk == 5


async def test_a_server_that_is_away_at_the_start_is_listened_to_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.bus.subscriber.CONNECT_TIMEOUT_S", 0.05)
    settings = BusSettings(redis_url=f"unix://{tmp_path}/valkey.sock")
    async with pulling(settings) as (puller, _):
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
