import random
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from shared.events import Answer, Failure, Tokens, Vector
from shared.jobs import Lane, Sampling
from tests.models import BYTE_EOS
from tests.worker.engine.faulty import Decode, Fault, Faults
from tests.worker.engine.harness import Recorded, config, plain_greedy, task
from worker.engine import EmbedTask, EngineEvent, SequenceKey, Task
from worker.engine.assembly import MOST_IDLE
from worker.engine.cells.resident import Standing

SOAK_S = 6.0
PROMPTS = [list(b"one prefix that many share, then "), list(b"another"), list(b"\xf0\x9f\x91\x8b and bytes")]


@pytest.mark.slow
def test_after_anything_at_all_every_task_has_one_ending_and_the_cache_is_as_it_says(byte_model: Path) -> None:
    dice = random.Random(4)
    recorded: list[Recorded] = []

    def meddle(key: SequenceKey, event: EngineEvent) -> None:
        if is_over or not isinstance(event, Tokens):
            return
        if dice.random() < 0.005:
            recorded[0].engine.cancel(key.job_id)
        elif dice.random() < 0.003:
            discarded.add(key.job_id)
            recorded[0].engine.discard(key.job_id)

    def fail(_decode: Decode) -> Fault | None:
        is_failing = not is_over and dice.random() < 0.01
        return dice.choice([Fault(-1), Fault(-3, is_halfway=True), Fault(1)]) if is_failing else None

    is_over: list[bool] = []
    discarded: set[str] = set()
    submitted: list[str] = []
    room = {"n_ctx": 640, "n_ctx_slot": 260, "n_batch": 48, "n_ubatch": 48, "age_s": 0.05, "quantum_s": 0.01}
    with Recorded(config(byte_model, **room, shift_limit=300), meddle, open_context=Faults(fail).open) as engine:
        recorded.append(engine)
        until = time.monotonic() + SOAK_S
        while time.monotonic() < until:
            if engine.engine.snapshot().n_waiting > 8:
                engine.wait_for(lambda: engine.engine.snapshot().n_waiting <= 8)
            submitted.append(f"job{len(submitted)}")
            engine.submit(_anything(dice, submitted[-1]))
        for job_id in submitted:
            engine.wait_for(partial(_is_settled, engine, discarded, job_id))
        is_over.append(True)
        engine.run(task("last", PROMPTS[0]))
        _check_cells(engine)
        _check_events(engine, [job_id for job_id in submitted if job_id not in discarded])
        (answer,) = engine.run(task("check", PROMPTS[0] * 5))
    assert list(answer.ids) == plain_greedy(byte_model, PROMPTS[0] * 5, 16, banned=[BYTE_EOS])
    assert len(submitted) > 50


def _is_settled(engine: Recorded, discarded: set[str], job_id: str) -> bool:
    return job_id in discarded or engine.has_ended(job_id)


def _anything(dice: random.Random, job_id: str) -> Task:
    tokens = dice.choice(PROMPTS) * dice.randint(0, 8) + [dice.randrange(256) for _ in range(dice.randint(0, 20))]
    if dice.random() < 0.15:
        return EmbedTask(SequenceKey(job_id, 0), tuple(tokens[: dice.randint(0, 60)]))
    if dice.random() < 0.03:
        tokens = [*tokens, 10**6]
    sampling = Sampling(
        temperature=dice.choice([0.0, 0.8, 2.0]),
        top_k=dice.choice([0, 1, 40]),
        repeat_penalty=dice.choice([1.0, 1.2]),
        ignore_eos=dice.random() < 0.8,
    )
    return task(
        job_id,
        tokens,
        n_predict=dice.choice([0, 1, 5, 30, -1]),
        stop=dice.choice([(), ("a",), ("ab", "\n")]),
        sampling=sampling,
        seed=dice.randrange(2**32),
        lane=dice.choice(list(Lane)),
        cache_prompt=dice.random() < 0.8,
        produced=tuple(dice.randrange(256) for _ in range(dice.choice([0, 0, 3]))),
        deadline=time.monotonic() + dice.choice([0.001, 5.0, 60.0]),
        shift=dice.random() < 0.3,
        n_keep=dice.choice([0, 5, -1]),
        n_discard=dice.choice([0, 1, 50]),
    )


def _check_cells(engine: Recorded) -> None:
    snapshot = engine.engine.snapshot()
    assert engine.engine.free_slots() == 4
    assert snapshot.n_waiting == 0
    assert not any(slot.is_processing for slot in snapshot.slots)
    assert snapshot.n_parked == 0
    residents = {resident.seq_id: resident for resident in engine.engine._cells.residents}
    assert all(resident.standing is Standing.IDLE for resident in residents.values())
    for seq_id in range(4 + MOST_IDLE):
        n_cached = residents[seq_id].n_cached if seq_id in residents else 0
        assert engine.engine._context.length(seq_id) == n_cached


def _check_events(engine: Recorded, job_ids: list[str]) -> None:
    kinds: Counter[str] = Counter()
    for job_id in job_ids:
        events = engine.events(job_id)
        assert sum(isinstance(event, Answer | Failure | Vector) for event in events) == 1, job_id
        ending = events[-1]
        kinds[type(ending).__name__] += 1
        if isinstance(ending, Answer):
            assert ending.text.endswith(engine.streamed(job_id))
            assert ending.timings.cache_n + ending.timings.prompt_n == ending.prompt_tokens
    assert kinds["Answer"] > kinds["Failure"] > 0
    assert kinds["Vector"] > 0
