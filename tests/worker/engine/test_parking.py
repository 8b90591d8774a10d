"""Bulk gives its slots to people, and goes on later as if nothing had been."""

import time
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path

import pytest

from shared.events import Answer, Failure, Progress, Tokens
from shared.jobs import Lane, Sampling
from tests.models import BYTE_EOS
from tests.worker.engine.harness import EXACT, GREEDY, Recorded, config, plain_greedy, task
from worker.engine import EngineEvent, GenerateTask, SequenceKey
from worker.engine.cells.resident import Standing
from worker.engine.engine import MOST_INTERRUPTIONS

WILD = Sampling(temperature=1.5, top_k=0, min_p=0.0, repeat_penalty=1.2, ignore_eos=True)
TEXT = b"Whoever has time lets others go first, and is not forgotten for it. "


def prompt(n_tokens: int, first: int = 0) -> list[int]:
    return [TEXT[(first + at) % len(TEXT)] for at in range(n_tokens)]


def bulk(job_id: str, tokens: list[int], *, n_predict: int = 200, **more: object) -> GenerateTask:
    return task(job_id, tokens, n_predict=n_predict, lane=Lane.BULK, **more)


class Scene:
    """An engine in which something is done once, at the n-th event of a kind of one job."""

    def __init__(
        self, model: Path, job_id: str, kind: type, n: int, act: Callable[[Recorded], object], **more: object
    ) -> None:
        self._job_id, self._kind, self._n, self._act = job_id, kind, n, act
        self.recorded = Recorded(config(model, **({"n_slots": 2} | EXACT | more)), self._look)

    def _look(self, key: SequenceKey, event: EngineEvent) -> None:
        if key.job_id == self._job_id and isinstance(event, self._kind):
            self._n -= 1
            if self._n == 0:
                self._act(self.recorded)


def submit_person(recorded: Recorded) -> None:
    recorded.submit(task("person", prompt(20, 40), n_predict=60))


@pytest.mark.parametrize("sampling", [GREEDY, WILD])
def test_a_person_takes_a_slot_of_bulk_at_once_and_bulk_says_what_it_would_have(
    byte_model: Path, sampling: Sampling
) -> None:
    tasks = [bulk("b0", prompt(30), sampling=sampling, seed=3), bulk("b1", prompt(50, 9), sampling=sampling, seed=4)]
    with Recorded(config(byte_model, n_slots=2, **EXACT)) as engine:
        undisturbed = [answer.text for answer in engine.run(*tasks)]

    seen: list[tuple[int, int]] = []

    def arrive(recorded: Recorded) -> None:
        seen.append((recorded.engine.snapshot().steps, 0))
        submit_person(recorded)

    with Scene(byte_model, "b1", Tokens, 20, arrive).recorded as engine:
        engine.submit(*tasks)
        engine.wait_for(lambda: bool(engine._events["person"]))
        seen.append((engine.engine.snapshot().steps, engine.engine.snapshot().n_parked))
        person = engine.answer("person")
        assert not engine.has_ended("b0")
        assert not engine.has_ended("b1")
        answers = [engine.answer(each.key.job_id) for each in tasks]
        assert engine.engine.snapshot().work.n_prompt_tokens == 30 + 50 + 20
        assert engine.engine.snapshot().n_parked == 0
        assert engine.engine.free_slots() == 2
        for answer in answers:
            job_id = f"b{answers.index(answer)}"
            assert engine.streamed(job_id) == answer.text
            assert [token for event in engine.tokens(job_id) for token in event.ids] == list(answer.ids)
    assert [answer.text for answer in answers] == undisturbed
    assert list(person.ids) == plain_greedy(byte_model, prompt(20, 40), 60, banned=[BYTE_EOS])
    assert seen[1][1] == 1


def test_who_is_parked_is_whose_cells_cost_least_and_the_slot_shows_the_person(byte_model: Path) -> None:
    owners: list[set[str | None]] = []

    def look(recorded: Recorded) -> None:
        owners.append({slot.job_id for slot in recorded.engine.snapshot().slots})

    def arrive(recorded: Recorded) -> None:
        scene._job_id, scene._kind, scene._n, scene._act = "person", Tokens, 5, look
        submit_person(recorded)

    scene = Scene(byte_model, "short", Tokens, 3, arrive)
    with scene.recorded as engine:
        engine.submit(bulk("long", prompt(200)), bulk("short", prompt(20, 7)))
        for job_id in ("person", "long", "short"):
            engine.answer(job_id)
    assert owners == [{"person", "long"}]


def test_bulk_parked_within_its_prompt_tells_of_it_once(byte_model: Path) -> None:
    with Scene(byte_model, "b0", Progress, 4, submit_person, n_slots=1, n_batch=32).recorded as engine:
        engine.submit(bulk("b0", prompt(400), n_predict=20))
        engine.answer("person")
        answer = engine.answer("b0")
        processed = [event.processed for event in engine.events("b0") if isinstance(event, Progress)]
        assert engine.engine.snapshot().work.n_prompt_tokens == 420
    assert list(answer.ids) == plain_greedy(byte_model, prompt(400), 20, banned=[BYTE_EOS])
    assert (processed[0], processed[-1]) == (0, 400)
    assert all(before < after for before, after in pairwise(processed))


@pytest.mark.parametrize("kind", [Progress, Tokens])
def test_bulk_whose_cells_were_needed_says_the_same_and_nothing_twice(byte_model: Path, kind: type) -> None:
    def arrive(recorded: Recorded) -> None:
        recorded.submit(task("person", prompt(380, 40), n_predict=20))

    room = {"n_slots": 1, "n_ctx": 512, "n_ctx_slot": 500, "n_batch": 64}
    with Scene(byte_model, "b0", kind, 4, arrive, **room).recorded as engine:
        engine.submit(bulk("b0", prompt(300), n_predict=100, sampling=WILD, seed=5))
        engine.answer("person")
        answer = engine.answer("b0")
        processed = [event.processed for event in engine.events("b0") if isinstance(event, Progress)]
        assert engine.streamed("b0") == answer.text
        (undisturbed,) = engine.run(bulk("b1", prompt(300), n_predict=100, sampling=WILD, seed=5))
    assert answer.text == undisturbed.text
    assert all(before < after for before, after in pairwise(processed))
    assert answer.timings.cache_n + answer.timings.prompt_n == 300


@pytest.mark.parametrize("how", ["cancel", "deadline", "discard"])
def test_a_parked_sequence_is_ended_where_it_stands(byte_model: Path, how: str) -> None:
    def end(recorded: Recorded) -> None:
        assert recorded.engine.snapshot().n_parked == 1
        match how:
            case "cancel":
                recorded.engine.cancel("b0")
            case "discard":
                recorded.engine.discard("b0")
            case _:
                time.sleep(max(0.0, deadline - time.monotonic()))

    def arrive(recorded: Recorded) -> None:
        scene._job_id, scene._kind, scene._n, scene._act = "person", Tokens, 2, end
        recorded.submit(task("person", prompt(20, 40), n_predict=400))

    scene = Scene(byte_model, "b0", Tokens, 3, arrive, n_slots=1)
    with scene.recorded as engine:
        deadline = time.monotonic() + 1.0
        engine.submit(bulk("b0", prompt(30), n_predict=-1, deadline=deadline if how == "deadline" else None))
        if how != "discard":
            ending = engine.ending("b0")
            assert isinstance(ending, Failure)
            assert ending.code == {"cancel": "cancelled", "deadline": "expired"}[how]
            assert not engine.has_ended("person")
        engine.answer("person")
        engine.run(task("next", prompt(5)))
        assert engine.engine.snapshot().n_parked == 0
        assert engine.engine.free_slots() == 1
        assert {each.standing for each in engine.engine._cells.residents} == {Standing.IDLE}
        assert not any(isinstance(event, Answer) for event in engine.events("b0"))


def test_an_engine_stops_with_bulk_parked(byte_model: Path) -> None:
    with Scene(byte_model, "b0", Tokens, 3, submit_person, n_slots=1).recorded as engine:
        engine.submit(bulk("b0", prompt(30), n_predict=-1))
        engine.wait_for(lambda: engine.engine.snapshot().n_parked == 1)
    assert not engine.engine.snapshot().is_alive


def test_a_stop_string_met_while_being_parked_ends_it(byte_model: Path) -> None:
    with Recorded(config(byte_model, n_slots=1)) as engine:
        (whole,) = engine.run(bulk("whole", prompt(30), n_predict=60))
        for n_heard in range(1, 8):
            stop = whole.text[n_heard + 1 : n_heard + 4]
            expected = whole.text[: whole.text.index(stop)]
            name = f"cut{n_heard}"
            engine.submit(bulk(name, prompt(30), n_predict=60, stop=(stop,)))
            engine.wait_for(lambda name=name: len(engine._events[name]) > 2)  # type: ignore[misc]
            engine.run(task(f"person{n_heard}", prompt(20, 40), n_predict=4))
            assert engine.answer(name).text == engine.streamed(name) == expected


def test_parked_bulk_goes_before_other_bulk_and_after_people(byte_model: Path) -> None:
    started: list[str] = []

    def look(key: SequenceKey, event: EngineEvent) -> None:
        if isinstance(event, Progress) and event.processed == event.cache:
            started.append(key.job_id)
        if key.job_id == "b0" and isinstance(event, Tokens) and "i0" not in submitted:
            submitted.extend(["i0", "i1"])
            engine.submit(*(task(name, prompt(20, 40), n_predict=10, cache_prompt=False) for name in ("i0", "i1")))
        if isinstance(event, Answer):
            ended.append(key.job_id)

    submitted: list[str] = []
    ended: list[str] = []
    with Recorded(config(byte_model, n_slots=1), look) as engine:
        engine.submit(bulk("b0", prompt(30), n_predict=100), bulk("b1", prompt(30, 5), n_predict=10))
        engine.answer("b1")
    assert ended == ["i0", "i1", "b0", "b1"]


class Queueing:
    """People without end: whenever one has been answered the next comes, until `is_over` is set."""

    def __init__(self, n_predict: int = 20) -> None:
        self.is_over = False
        self.answers: list[str] = []
        self._n_predict = n_predict
        self._numbers = count()

    def come(self, engine: Recorded, n: int) -> None:
        for _ in range(n):
            engine.submit(task(f"person{next(self._numbers)}", prompt(10, 40), n_predict=self._n_predict))

    def look(self, engine: Recorded, key: SequenceKey, event: EngineEvent) -> None:
        if isinstance(event, Answer):
            self.answers.append(key.job_id)
            if key.job_id.startswith("person") and not self.is_over:
                self.come(engine, 1)


@pytest.mark.parametrize("is_under_way", [True, False])
def test_bulk_comes_to_its_end_though_people_never_cease(byte_model: Path, is_under_way: bool) -> None:
    people = Queueing()
    with Recorded(
        config(byte_model, n_slots=1, age_s=0.1, quantum_s=0.05), lambda key, event: people.look(engine, key, event)
    ) as engine:
        if is_under_way:
            engine.submit(bulk("b0", prompt(30), n_predict=200))
            engine.wait_for(lambda: len(engine._events["b0"]) > 3)
        people.come(engine, 4)
        if not is_under_way:
            engine.wait_for(lambda: len(people.answers) > 0)
            engine.submit(bulk("b0", prompt(30), n_predict=200))
        answer = engine.answer("b0")
        people.is_over = True
    assert list(answer.ids) == plain_greedy(byte_model, prompt(30), 200, banned=[BYTE_EOS])
    assert len(people.answers) > 5


def test_bulk_that_is_not_due_lets_every_person_go_first(byte_model: Path) -> None:
    people = Queueing()
    with Recorded(config(byte_model, n_slots=1), lambda key, event: people.look(engine, key, event)) as engine:
        engine.submit(bulk("b0", prompt(30), n_predict=200))
        engine.wait_for(lambda: len(engine._events["b0"]) > 3)
        people.come(engine, 4)
        engine.wait_for(lambda: len(people.answers) > 40)
        people.is_over = True
        engine.answer("b0")
    assert people.answers.index("b0") > 40


LONG = {"n_slots": 2, "n_ctx": 8192, "n_ctx_slot": 4000, "n_batch": 1024} | EXACT


def believe_in_slow_prompts(recorded: Recorded) -> None:
    """So that decodes of prompts are worth interrupting on any machine."""
    recorded.engine._pace.observe(0, 1000, 500.0)


def test_a_person_interrupts_a_long_decode_of_bulk_which_loses_nothing(
    byte_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interruptions: list[int] = []

    def look(key: SequenceKey, event: EngineEvent) -> None:
        if key.job_id == "b0" and isinstance(event, Progress) and not submitted:
            submitted.append(key)
            submit_person(engine)
        if key.job_id == "person":
            interruptions.append(engine.engine._n_interruptions)

    submitted: list[SequenceKey] = []
    with Recorded(config(byte_model, **LONG), look) as engine:
        believe_in_slow_prompts(engine)
        engine.submit(bulk("b0", prompt(3500), n_predict=10))
        person, answer = engine.answer("person"), engine.answer("b0")
        processed = [event.processed for event in engine.events("b0") if isinstance(event, Progress)]
        (undisturbed,) = engine.run(bulk("b1", prompt(3500), n_predict=10, cache_prompt=False))
    assert interruptions[0] == 1
    assert list(person.ids) == plain_greedy(byte_model, prompt(20, 40), 60, banned=[BYTE_EOS])
    assert answer.ids == undisturbed.ids
    assert all(before < after for before, after in pairwise(processed))
    assert not [record for record in caplog.records if "n_ctx_train" not in record.message]


def test_bulk_goes_on_however_often_people_interrupt_it(byte_model: Path) -> None:
    """The next one comes as soon as the one before has the answer, which is when a decode of bulk has just begun."""
    people = Queueing(n_predict=1)
    with Recorded(config(byte_model, **LONG), lambda key, event: people.look(engine, key, event)) as engine:
        believe_in_slow_prompts(engine)
        people.come(engine, 1)
        engine.submit(bulk("b0", prompt(3500), n_predict=1))
        engine.answer("b0")
        people.is_over = True
    n_decodes = 3500 // 250  # of half the tokens at least that are believed to fit
    assert len(people.answers) <= n_decodes * (MOST_INTERRUPTIONS + 1)
