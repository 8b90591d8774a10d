"""Bulk beside people: it sits out while a first token is awaited, gets what does not hold people up, and goes on."""

from pathlib import Path

import pytest

from shared.events import Answer, Tokens, Vector
from shared.jobs import Lane
from tests.models import BYTE_EOS
from tests.worker.engine.harness import Recorded, config, plain_greedy, task
from worker.engine import EmbedTask, EngineEvent, SequenceKey
from worker.engine.plan import OWN_TURN_EVERY, TARGET_UNHURRIED_MS, Pace

N_PROMPT, N_BATCH = 2880, 48
ROOM = {"n_slots": 3, "n_ctx": 8192, "n_ctx_slot": 3000, "n_batch": N_BATCH, "n_ubatch": N_BATCH}


def prompt(n_tokens: int, first: int = 0) -> list[int]:
    return [65 + (first + 7 * at) % 58 for at in range(n_tokens)]


class Witness:
    """Who said how much, from the arrival of a person to the first and the last that the person heard."""

    def __init__(self, *, n_predict: int = 10) -> None:
        self.said: list[str] = []
        self.until_first = 0
        self.until_last = 0
        self._n_predict = n_predict

    def look(self, engine: Recorded, key: SequenceKey, event: EngineEvent) -> None:
        if isinstance(event, Tokens | Vector):
            self.said.append(key.job_id)
        if key.job_id == "person" and isinstance(event, Tokens) and not self.until_first:
            self.until_first = len(self.said) - 1
        if key.job_id == "person" and isinstance(event, Answer):
            self.until_last = len(self.said)

    def arrive(self, engine: Recorded, tokens: list[int]) -> None:
        self.said.clear()
        engine.submit(task("person", tokens, n_predict=self._n_predict))


class FixedPace(Pace):
    """Learns nothing. A person's prompt never fills a batch, so that there would be room for rows of bulk."""

    N_FITTING = 40

    def __init__(self, n_batch: int) -> None:
        super().__init__(n_batch)
        super().observe(1, 0, 1.0)
        super().observe(0, 1000, 1000.0 * TARGET_UNHURRIED_MS / self.N_FITTING)

    def observe(self, n_generating: int, n_prefill: int, elapsed_ms: float) -> None:
        pass


@pytest.mark.slow
def test_bulk_sits_out_while_a_person_waits_for_the_first_token_but_is_not_stopped(byte_model: Path) -> None:
    witness = Witness()
    with Recorded(config(byte_model, **ROOM), lambda key, event: witness.look(engine, key, event)) as engine:
        tasks = [task(f"b{at}", prompt(30, at), n_predict=300, lane=Lane.BULK) for at in range(2)]
        engine.submit(*tasks)
        engine.wait_for(lambda: len(engine._events["b1"]) > 10)
        engine.engine._pace = FixedPace(N_BATCH)
        witness.arrive(engine, prompt(N_PROMPT))
        engine.answer("person")
        heard = witness.said[: witness.until_first]
        answers = [engine.answer(each.key.job_id) for each in tasks]
    n_steps = N_PROMPT // FixedPace.N_FITTING
    assert 0 < len(heard) <= 2 * (n_steps // OWN_TURN_EVERY + 1) + 6
    for at, answer in enumerate(answers):
        assert list(answer.ids) == plain_greedy(byte_model, prompt(30, at), 300, banned=[BYTE_EOS])


def test_rows_and_prompts_of_bulk_go_on_beside_a_stream(byte_model: Path) -> None:
    witness = Witness(n_predict=600)
    with Recorded(config(byte_model, **ROOM), lambda key, event: witness.look(engine, key, event)) as engine:
        witness.arrive(engine, prompt(5))
        engine.wait_for(lambda: bool(witness.until_first))
        engine.submit(task("b0", prompt(30), n_predict=-1, lane=Lane.BULK))
        engine.submit(task("b1", prompt(60, 9), n_predict=-1, lane=Lane.BULK))
        engine.answer("person")
        assert not engine.has_ended("b0")
        heard = witness.said[: witness.until_last]
    # How much it is depends on what rows cost here, but never is a decode bulk's alone.
    assert all(3 <= heard.count(job_id) <= heard.count("person") for job_id in ("b0", "b1"))


def test_bulk_inputs_are_embedded_beside_a_stream_as_far_as_it_does_not_stall(byte_model: Path) -> None:
    witness = Witness(n_predict=1000)
    with Recorded(config(byte_model, n_ubatch=512), lambda key, event: witness.look(engine, key, event)) as engine:
        witness._n_predict = 400
        witness.arrive(engine, prompt(5))
        engine.submit(*(EmbedTask(SequenceKey("list", at), (65,) * 8, lane=Lane.BULK) for at in range(500)))
        engine.answer("person")
        heard = witness.said[: witness.until_last]
    assert 0 < heard.count("list") <= 400 // OWN_TURN_EVERY + 3


def test_bulk_sits_out_while_people_wait_for_vectors_but_is_not_stopped(byte_model: Path) -> None:
    witness = Witness()
    with Recorded(
        config(byte_model, n_batch=64, n_ubatch=64), lambda key, event: witness.look(engine, key, event)
    ) as engine:
        engine.submit(task("b0", prompt(30), n_predict=-1, lane=Lane.BULK))
        engine.wait_for(lambda: len(engine._events["b0"]) > 10)
        witness.said.clear()
        n_inputs = 4 * OWN_TURN_EVERY
        engine.submit(*(EmbedTask(SequenceKey("vectors", at), (65,) * 64) for at in range(n_inputs)))
        engine.wait_for(lambda: witness.said.count("vectors") == n_inputs)
        heard = witness.said[: len(witness.said) - witness.said[::-1].index("vectors")]
    assert heard.count("b0") <= 16
