from pathlib import Path

import numpy as np
import pytest

from shared.events import Failure, Vector
from shared.jobs import Lane
from tests.models import demo_model_path
from tests.worker.engine.faulty import Fault, Faults
from tests.worker.engine.harness import Recorded, config, task
from worker.engine import EmbedTask, EngineConfig, EngineEvent, SequenceKey


def embed(job_id: str, tokens: list[int], *, norm: int = 2, lane: Lane = Lane.INTERACTIVE, index: int = 0) -> EmbedTask:
    return EmbedTask(SequenceKey(job_id, index), tuple(tokens), norm, lane)


def vector(engine: Recorded, job_id: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    ending = engine.ending(job_id)
    assert isinstance(ending, Vector), ending
    return ending.values()


def test_a_vector_has_the_models_width_and_length_one(byte_model: Path) -> None:
    with Recorded(config(byte_model)) as engine:
        engine.submit(embed("unit", list(b"hello")), embed("raw", list(b"hello"), norm=-1))
        unit, raw = vector(engine, "unit"), vector(engine, "raw")
    assert unit.shape == (64,)
    assert np.linalg.norm(unit) == pytest.approx(1.0, abs=1e-5)
    assert raw / np.linalg.norm(raw) == pytest.approx(unit, abs=1e-6)


def test_a_vector_does_not_depend_on_its_neighbours() -> None:
    """On the demo model: its weights are quantized, which is what makes neighbours felt in a common batch."""
    with Recorded(EngineConfig(model=demo_model_path(), n_ctx=512, n_slots=2)) as engine:
        texts = ["a", "the quick brown fox", "a", "an altogether longer input of several words", "a"]
        inputs = [engine.engine.model.tokenize(text, add_special=True, parse_special=False) for text in texts]
        engine.submit(embed("alone", inputs[1]))
        alone = vector(engine, "alone")
        engine.submit(task("beside", inputs[3], n_predict=8))
        engine.submit(*(embed(f"in{at}", tokens) for at, tokens in enumerate(inputs)))
        together = [vector(engine, f"in{at}") for at in range(len(inputs))]
        engine.answer("beside")
    assert together[1] == pytest.approx(alone, abs=1e-5)
    assert together[0] == pytest.approx(together[2], abs=1e-5)
    assert together[0] == pytest.approx(together[4], abs=1e-5)
    assert together[0] != pytest.approx(together[1], abs=1e-2)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_is_what_was_asked_for(byte_model: Path, pooling: str) -> None:
    with Recorded(config(byte_model, pooling=pooling)) as engine:
        engine.submit(embed("whole", list(b"hello")), embed("first", list(b"h")))
        is_first = vector(engine, "whole") == pytest.approx(vector(engine, "first"), abs=1e-4)
    assert is_first == (pooling == "cls")


def test_inputs_that_cannot_be_embedded_fail_alone_and_name_the_limit(byte_model: Path) -> None:
    with Recorded(config(byte_model, n_ubatch=64)) as engine:
        engine.submit(embed("long", [65] * 65), embed("empty", []), embed("fits", [65] * 64), embed("bad", [65, 10**6]))
        long, empty, bad = engine.ending("long"), engine.ending("empty"), engine.ending("bad")
        assert vector(engine, "fits").shape == (64,)
    assert isinstance(long, Failure)
    assert long.code == "invalid_request"
    assert "65 tokens" in long.message
    assert "64 (n_ubatch)" in long.message
    assert isinstance(empty, Failure)
    assert empty.code == "invalid_request"
    assert isinstance(bad, Failure)
    assert bad.code == "invalid_request"


@pytest.mark.parametrize("code", [1, 2, -1, -2, -3])
def test_an_input_that_fails_is_tried_once_more_and_then_fails_alone(byte_model: Path, code: int) -> None:
    failing = {1, 3, 4}
    faults = Faults(lambda decode: Fault(code) if decode.number in failing else None)
    with Recorded(config(byte_model), open_context=faults.open) as engine:
        engine.submit(*(embed(f"in{at}", list(b"hello")) for at in range(3)))
        first, last = vector(engine, "in0"), vector(engine, "in2")
        failed = engine.ending("in1")
    assert isinstance(failed, Failure)
    assert failed.code == "engine_failed"
    assert first == pytest.approx(last, abs=1e-6)


def test_embeddings_and_generation_take_turns(byte_model: Path) -> None:
    with Recorded(config(byte_model, n_batch=64, n_ubatch=64)) as engine:
        engine.submit(task("text", list(b"hello"), n_predict=60))
        engine.submit(*(embed(f"in{at}", [65 + at] * 60) for at in range(20)))
        engine.answer("text")
        for at in range(20):
            vector(engine, f"in{at}")
        snapshot = engine.engine.snapshot()
    assert snapshot.steps >= 60
    assert snapshot.n_waiting == 0


def test_a_job_with_inputs_that_wait_can_be_cancelled(byte_model: Path) -> None:
    with Recorded(config(byte_model, n_batch=64, n_ubatch=64)) as engine:
        engine.submit(*(EmbedTask(SequenceKey("many", at), (65,) * 64) for at in range(200)))
        engine.engine.cancel("many")
        engine.wait_for(lambda: len(engine.events("many")) == 200)
        codes = {event.code for event in engine.events("many") if isinstance(event, Failure)}
    assert codes == {"cancelled"}


def test_a_long_bulk_list_is_left_for_a_person_after_the_input_under_way(byte_model: Path) -> None:
    said: list[str] = []

    def look(key: SequenceKey, event: EngineEvent) -> None:
        said.append(key.job_id)
        if len(said) == 1:
            engine.submit(embed("person", list(b"hello")))

    n_a_turn = 512 // 50
    with Recorded(config(byte_model, n_batch=512, n_ubatch=512), look) as engine:
        engine.engine._pace.observe(0, 1000, 10.0)  # so cheap that a turn takes a whole batch
        engine.submit(*(embed("list", [65] * 50, lane=Lane.BULK, index=index) for index in range(60)))
        engine.wait_for(lambda: len(said) == 61)
    assert said.index("person") < 2 * n_a_turn


def test_bulk_inputs_are_embedded_though_people_never_cease(byte_model: Path) -> None:
    def look(key: SequenceKey, event: EngineEvent) -> None:
        if key.job_id == "person" and not is_over:
            engine.submit(embed("person", [65] * 60))

    is_over: list[bool] = []
    with Recorded(config(byte_model, age_s=0.05, quantum_s=0.01), look) as engine:
        engine.submit(*(embed("person", [65] * 60) for _ in range(60)))
        engine.submit(*(embed("list", [65] * 50, lane=Lane.BULK, index=index) for index in range(5)))
        engine.wait_for(lambda: len(engine._events["list"]) == 5)
        is_over.append(True)
