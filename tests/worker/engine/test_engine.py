import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shared.events import Answer, Failure, Progress, StopType, Tokens
from shared.jobs import Lane, Sampling
from tests.models import BYTE_EOS, demo_model_path
from tests.worker.engine.harness import GREEDY, Recorded, config, plain_greedy, task
from worker.engine import EngineConfig, EngineEvent, GenerateTask, LoadFailed, SequenceKey
from worker.engine.engine import Engine
from worker.engine.sampling import Bias, Breakers

TEXT = b"It was a bright cold day in April, and the clocks were striking thirteen. "


def prompt(n_tokens: int, first: int = 0) -> list[int]:
    """Bytes of a text, begun somewhere in it so that prompts differ."""
    return [TEXT[(first + at) % len(TEXT)] for at in range(n_tokens)]


def test_greedy_text_is_that_of_a_plain_loop(byte_model: Path) -> None:
    with Recorded(config(byte_model)) as engine:
        (answer,) = engine.run(task("a", prompt(40), n_predict=30))
    assert list(answer.ids) == plain_greedy(byte_model, prompt(40), 30, banned=[BYTE_EOS])


def test_eight_in_one_batch_say_what_each_says_alone(byte_model: Path) -> None:
    tasks = [task(f"job{index}", prompt(20 + 7 * index, index), n_predict=24) for index in range(8)]
    with Recorded(config(byte_model, n_slots=8)) as engine:
        together = [answer.ids for answer in engine.run(*tasks)]
    with Recorded(config(byte_model, n_slots=8)) as engine:
        alone = [engine.run(each)[0].ids for each in tasks]
    assert together == alone


@pytest.mark.parametrize("n_batch", [8, 33, 512])
def test_a_prompt_in_chunks_is_the_prompt_in_one(byte_model: Path, n_batch: int) -> None:
    with Recorded(config(byte_model, n_batch=n_batch)) as engine:
        (answer,) = engine.run(task("a", prompt(200)))
        processed = [event.processed for event in engine.events("a") if isinstance(event, Progress)]
    assert list(answer.ids) == plain_greedy(byte_model, prompt(200), 16, banned=[BYTE_EOS])
    assert processed[0] == 0
    assert processed[-1] == 200
    assert processed == sorted(set(processed))
    assert max(after - before for before, after in pairwise(processed)) <= n_batch


def test_two_streams_are_interleaved_in_one_batch(byte_model: Path) -> None:
    batches: list[tuple[int, ...]] = []
    recorded: list[Recorded] = []

    def look(_key: SequenceKey, _event: EngineEvent) -> None:
        batches.append(recorded[0].engine.snapshot().batch.generating)

    with Recorded(config(byte_model), look) as engine:
        recorded.append(engine)
        engine.run(task("a", prompt(20), n_predict=60), task("b", prompt(30, 5), n_predict=60))
    assert (0, 1) in batches


def test_a_prompt_is_prefilled_beside_generating_rows(byte_model: Path) -> None:
    seen: list[bool] = []
    submitted: list[GenerateTask] = []
    recorded: list[Recorded] = []

    def look(key: SequenceKey, event: EngineEvent) -> None:
        if key.job_id == "first" and isinstance(event, Tokens) and not submitted:
            submitted.append(task("second", prompt(300, 9), n_predict=4))
            recorded[0].submit(*submitted)
        batch = recorded[0].engine.snapshot().batch
        seen.append(bool(batch.generating) and bool(batch.prefilling))

    with Recorded(config(byte_model, n_batch=32), look) as engine:
        recorded.append(engine)
        engine.submit(task("first", prompt(10), n_predict=200))
        engine.answer("second")
        engine.answer("first")
    assert any(seen)


def test_the_same_prompt_again_is_reused_but_for_one_token(byte_model: Path) -> None:
    with Recorded(config(byte_model)) as engine:
        (first,) = engine.run(task("a", prompt(100)))
        (again,) = engine.run(task("b", prompt(100)))
        (tail,) = engine.run(task("c", prompt(60) + prompt(40, 30)))
        (off,) = engine.run(task("d", prompt(100), cache_prompt=False))
    assert first.ids == again.ids == off.ids
    assert [each.timings.cache_n for each in (first, again, tail, off)] == [0, 99, 60, 0]
    for answer in (first, again, tail, off):
        assert answer.timings.cache_n + answer.timings.prompt_n == answer.prompt_tokens == 100


def test_prompts_on_one_slot_say_the_same_with_and_without_their_cache(byte_model: Path) -> None:
    long, half, other = prompt(200), prompt(100), prompt(120, 40)
    order = [long, long + other, half, other, long]
    with Recorded(config(byte_model, n_slots=1)) as engine:
        cached = [engine.run(task(f"c{at}", each))[0] for at, each in enumerate(order)]
        plain = [engine.run(task(f"p{at}", each, cache_prompt=False))[0] for at, each in enumerate(order)]
    assert [answer.text for answer in cached] == [answer.text for answer in plain]
    assert cached[1].timings.cache_n == 200
    assert all(answer.timings.prompt_n >= 1 for answer in cached)


def test_prompts_that_come_together_compute_their_prefix_once(byte_model: Path) -> None:
    shared = prompt(240)
    tasks = [task(f"job{index}", [*shared, 65 + index, 66], n_predict=12) for index in range(4)]
    with Recorded(config(byte_model, n_batch=64)) as engine:
        answers = engine.run(*tasks)
        computed = engine.engine.snapshot().work.n_prompt_tokens
    assert computed == 240 + 4 * 2
    assert sorted(answer.timings.cache_n for answer in answers) == [0, 240, 240, 240]
    for index, answer in enumerate(answers):
        assert list(answer.ids) == plain_greedy(byte_model, [*shared, 65 + index, 66], 12, banned=[BYTE_EOS])


@pytest.mark.parametrize("n_predict", [0, 1, 2, 7])
def test_n_predict_is_a_hard_cap(byte_model: Path, n_predict: int) -> None:
    with Recorded(config(byte_model)) as engine:
        (answer,) = engine.run(task("a", prompt(30), n_predict=n_predict))
    assert len(answer.ids) == answer.timings.predicted_n == n_predict
    assert (answer.stop_type, answer.truncated) == (StopType.LIMIT, False)


def test_text_to_the_end_of_the_context_is_truncated(byte_model: Path) -> None:
    with Recorded(config(byte_model, n_ctx=512, n_slots=4)) as engine:
        assert engine.engine.n_ctx_slot == 128
        (answer,) = engine.run(task("a", prompt(100), n_predict=-1))
    assert (len(answer.ids), answer.stop_type, answer.truncated) == (28, StopType.LIMIT, True)


def test_an_end_of_generation_token_ends_and_is_counted(byte_model: Path) -> None:
    force_end = Sampling(temperature=0.0, logit_bias=((BYTE_EOS, 1000.0),))
    with Recorded(config(byte_model)) as engine:
        (answer,) = engine.run(task("a", prompt(20), sampling=force_end))
    assert (answer.stop_type, answer.text, answer.ids) == (StopType.EOS, "", (BYTE_EOS,))
    assert answer.timings.predicted_n == 1


def test_an_empty_prompt_is_answered_at_once(byte_model: Path) -> None:
    with Recorded(config(byte_model)) as engine:
        (answer,) = engine.run(task("a", []))
        assert (answer.text, answer.prompt_tokens, answer.timings.prompt_n) == ("", 0, 0)
        engine.run(task("b", prompt(5)))
        assert engine.engine.free_slots() == 4


def test_a_prompt_as_long_as_the_slot_is_refused_with_both_numbers(byte_model: Path) -> None:
    with Recorded(config(byte_model, n_ctx=512)) as engine:
        engine.submit(task("long", prompt(128)))
        ending = engine.ending("long")
        engine.run(task("fits", prompt(127), n_predict=-1))
    assert isinstance(ending, Failure)
    assert (ending.code, ending.n_prompt_tokens, ending.n_ctx) == ("exceed_context_size", 128, 128)


def test_a_stop_string_ends_the_text_before_it(byte_model: Path) -> None:
    with Recorded(config(byte_model)) as engine:
        (whole,) = engine.run(task("whole", prompt(50), n_predict=60))
        stop = whole.text[20:24]
        expected = whole.text[: whole.text.index(stop)]
        (answer,) = engine.run(task("stopped", prompt(50), n_predict=60, stop=("", stop)))
        assert (answer.text, answer.stop_type, answer.stopping_word) == (expected, StopType.WORD, stop)
        assert engine.streamed("stopped") == expected
        assert answer.timings.predicted_n == len(answer.ids) < 60
        said = [token for event in engine.tokens("stopped") for token in event.ids]
        assert tuple(said) == answer.ids[: len(said)]


def test_what_was_held_back_is_said_at_the_limit(byte_model: Path) -> None:
    with Recorded(config(byte_model)) as engine:
        (whole,) = engine.run(task("whole", prompt(50), n_predict=40))
        stop = whole.text[-6:] + "never"
        (answer,) = engine.run(task("held", prompt(50), n_predict=40, stop=(stop,)))
        assert answer.text == engine.streamed("held") == whole.text
    assert answer.stop_type is StopType.LIMIT


def test_streamed_text_and_ids_are_those_of_the_answer(byte_model: Path) -> None:
    wild = Sampling(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)
    with Recorded(config(byte_model)) as engine:
        tasks = [task(f"job{seed}", prompt(20), n_predict=80, sampling=wild, seed=seed) for seed in range(4)]
        for answer, each in zip(engine.run(*tasks), tasks, strict=True):
            job_id = each.key.job_id
            assert engine.streamed(job_id) == answer.text
            assert [token for event in engine.tokens(job_id) for token in event.ids] == list(answer.ids)
            assert answer.has_new_line == ("\n" in answer.text)
            assert answer.text.encode("utf-8", "strict")


def test_a_seed_gives_the_same_text_in_any_company(byte_model: Path) -> None:
    def drawn(job_id: str, seed: int) -> Answer:
        return engine.run(task(job_id, prompt(30), sampling=Sampling(ignore_eos=True), seed=seed))[0]

    with Recorded(config(byte_model)) as engine:
        alone, other_seed = drawn("alone", 7), drawn("other", 8)
        busy = [task(f"busy{at}", prompt(10, at), n_predict=100) for at in range(3)]
        engine.submit(*busy)
        in_company = drawn("in company", 7)
        for each in busy:
            engine.answer(each.key.job_id)
    assert alone.ids == in_company.ids
    assert alone.seed == 7
    assert alone.ids != other_seed.ids


def test_a_cancel_during_a_long_prefill_frees_the_slot_within_two_decodes(byte_model: Path) -> None:
    at_cancel: list[int] = []
    at_end: list[int] = []
    recorded: list[Recorded] = []

    def look(_key: SequenceKey, event: EngineEvent) -> None:
        engine = recorded[0].engine
        if isinstance(event, Progress) and event.processed > 100 and not at_cancel:
            at_cancel.append(engine.snapshot().steps)
            engine.cancel("long")
        if isinstance(event, Failure):
            at_end.append(engine.snapshot().steps)
            assert not any(slot.is_processing for slot in engine.snapshot().slots)

    with Recorded(config(byte_model, n_ctx=16384, n_slots=2, n_batch=32), look) as engine:
        recorded.append(engine)
        engine.submit(task("long", prompt(8000)))
        ending = engine.ending("long")
        assert engine.engine.free_slots() == 2
    assert isinstance(ending, Failure)
    assert ending.code == "cancelled"
    assert at_end[0] - at_cancel[0] <= 2


def test_a_cancel_reaches_a_task_that_waits_and_one_that_generates(byte_model: Path) -> None:
    cancelled: list[str] = []
    recorded: list[Recorded] = []

    def look(key: SequenceKey, event: EngineEvent) -> None:
        if key.job_id == "runs" and isinstance(event, Tokens) and not cancelled:
            cancelled.append("waits")
            recorded[0].engine.cancel("waits")
            recorded[0].engine.cancel("runs")
            recorded[0].engine.cancel("unknown")

    with Recorded(config(byte_model, n_slots=1), look) as engine:
        recorded.append(engine)
        engine.submit(task("runs", prompt(10), n_predict=-1), task("waits", prompt(10)))
        for job_id in ("runs", "waits"):
            ending = engine.ending(job_id)
            assert isinstance(ending, Failure)
            assert ending.code == "cancelled"
        assert engine.tokens("runs")
        assert not engine.tokens("waits")
        assert len(engine.run(task("next", prompt(10)))) == 1


def test_a_cancel_leaves_the_neighbour_its_text(byte_model: Path) -> None:
    recorded: list[Recorded] = []

    def look(key: SequenceKey, event: EngineEvent) -> None:
        if key.job_id == "other" and isinstance(event, Tokens):
            recorded[0].engine.cancel("other")

    with Recorded(config(byte_model), look) as engine:
        recorded.append(engine)
        engine.submit(task("kept", prompt(30), n_predict=50), task("other", prompt(30, 3), n_predict=50))
        assert isinstance(engine.ending("other"), Failure)
        kept = engine.answer("kept")
    assert list(kept.ids) == plain_greedy(byte_model, prompt(30), 50, banned=[BYTE_EOS])


def test_a_discarded_job_says_nothing_more(byte_model: Path) -> None:
    recorded: list[Recorded] = []

    def look(key: SequenceKey, event: EngineEvent) -> None:
        if key.job_id == "lost" and isinstance(event, Tokens):
            recorded[0].engine.discard("lost")

    with Recorded(config(byte_model, n_slots=1), look) as engine:
        recorded.append(engine)
        engine.submit(task("lost", prompt(10), n_predict=-1))
        engine.run(task("next", prompt(10)))
        assert not any(isinstance(event, Answer | Failure) for event in engine.events("lost"))


def test_only_the_attempt_that_is_meant_is_discarded(byte_model: Path) -> None:
    said: dict[int, list[EngineEvent]] = {1: [], 2: []}

    def look(key: SequenceKey, event: EngineEvent) -> None:
        said[key.attempt].append(event)

    with Recorded(config(byte_model, n_slots=2), look) as recorded:
        old, new = (
            replace(task("job", prompt(10), n_predict=200, sampling=GREEDY), key=SequenceKey("job", 0, attempt))
            for attempt in (1, 2)
        )
        recorded.submit(old)
        recorded.wait_for(lambda: bool(said[1]))
        recorded.engine.discard("job", 1)
        recorded.submit(new)
        recorded.wait_for(lambda: any(isinstance(event, Answer) for event in said[2]))
    assert not any(isinstance(event, Answer | Failure) for event in said[1])


def test_a_deadline_ends_what_runs_and_what_waits(byte_model: Path) -> None:
    with Recorded(config(byte_model, n_slots=1, n_ctx=4096)) as engine:
        now = time.monotonic()
        engine.submit(
            task("runs", prompt(10), n_predict=-1, deadline=now + 0.2, sampling=Sampling(ignore_eos=True)),
            task("waits", prompt(10), deadline=now - 1),
        )
        for job_id in ("waits", "runs"):
            ending = engine.ending(job_id)
            assert isinstance(ending, Failure)
            assert ending.code == "expired"


def test_interactive_tasks_go_before_bulk_ones_and_each_lane_in_order(byte_model: Path) -> None:
    ended: list[str] = []

    def look(key: SequenceKey, event: EngineEvent) -> None:
        if isinstance(event, Answer):
            ended.append(key.job_id)

    with Recorded(config(byte_model, n_slots=1), look) as engine:
        engine.submit(task("first", prompt(10), n_predict=100))
        engine.wait_for(lambda: engine.engine.snapshot().slots[0].is_processing)
        lanes = {"b1": Lane.BULK, "b2": Lane.BULK, "i1": Lane.INTERACTIVE, "i2": Lane.INTERACTIVE}
        engine.run(*(task(job_id, prompt(10), n_predict=2, lane=lane) for job_id, lane in lanes.items()))
    assert ended == ["first", "i1", "i2", "b1", "b2"]


def test_more_tasks_than_slots_are_all_answered(byte_model: Path) -> None:
    with Recorded(config(byte_model, n_slots=2)) as engine:
        tasks = [task(f"job{at}", prompt(5 + at, at), n_predict=6) for at in range(20)]
        answers = engine.run(*tasks)
        assert engine.engine.free_slots() == 2
        assert all(not slot.is_processing for slot in engine.engine.snapshot().slots)
    assert len({answer.id_slot for answer in answers}) == 2


def test_a_sequence_that_llama_cpp_refuses_fails_alone(byte_model: Path) -> None:
    """Our books of one sequence are made wrong, so that llama.cpp refuses every batch that it is in."""
    spoiled: list[str] = []
    recorded: list[Recorded] = []

    def spoil(key: SequenceKey, event: EngineEvent) -> None:
        if key.job_id == "bad" and isinstance(event, Tokens) and not spoiled:
            (sequence,) = [each for each in recorded[0].engine._running if each.task.key == key]
            sequence.resident.n_cached += 5
            spoiled.append(key.job_id)

    with Recorded(config(byte_model), spoil) as engine:
        recorded.append(engine)
        good = [task(f"good{at}", prompt(30, at), n_predict=40) for at in range(3)]
        engine.submit(*good, task("bad", prompt(20, 9), n_predict=-1))
        ending = engine.ending("bad")
        answers = [engine.answer(each.key.job_id) for each in good]
        engine.run(*(task(f"after{at}", prompt(20, at)) for at in range(4)))
    assert isinstance(ending, Failure)
    assert ending.code == "engine_failed"
    for at, answer in enumerate(answers):
        assert list(answer.ids) == plain_greedy(byte_model, prompt(30, at), 40, banned=[BYTE_EOS])


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": [65, 10**6]},
        {"prompt": [-1]},
        {"produced": (10**6,)},
        {"penalized": (65, 258)},
        {"breakers": Breakers.of(((65,), (66, -1)))},
        {"biases": Bias.of(((65, 1.0), (258, 1.0)))},
    ],
)
def test_ids_outside_the_vocabulary_never_reach_llama_cpp(byte_model: Path, wrong: dict[str, Any]) -> None:
    with Recorded(config(byte_model)) as engine:
        engine.submit(task("bad", **({"prompt": prompt(5)} | wrong)))
        ending = engine.ending("bad")
        engine.run(task("good", prompt(5)))
    assert isinstance(ending, Failure)
    assert ending.code == "invalid_request"


def test_a_task_whose_tokens_are_all_banned_fails_alone(byte_model: Path) -> None:
    nothing = Sampling(logit_bias=tuple((token, None) for token in range(258)))
    with Recorded(config(byte_model)) as engine:
        engine.submit(task("good", prompt(30), n_predict=20), task("bad", prompt(30, 3), sampling=nothing))
        ending = engine.ending("bad")
        assert isinstance(ending, Failure)
        assert ending.code == "invalid_request"
        assert len(engine.answer("good").ids) == 20


def test_overcommitted_cells_come_from_idle_residents_first(byte_model: Path) -> None:
    with Recorded(config(byte_model, n_ctx=512, n_ctx_slot=400, n_slots=3)) as engine:
        first = engine.run(task("a", prompt(300)))[0]
        second = engine.run(task("b", prompt(300, 11)))[0]
        third = engine.run(task("c", prompt(300, 23)))[0]
    for answer, start in ((first, 0), (second, 11), (third, 23)):
        assert list(answer.ids) == plain_greedy(byte_model, prompt(300, start), 16, banned=[BYTE_EOS])


def test_the_engine_measures_itself(byte_model: Path) -> None:
    with Recorded(config(byte_model)) as engine:
        engine.run(task("a", prompt(30), n_predict=50))
        snapshot = engine.engine.snapshot()
    assert snapshot.steps >= 50
    assert snapshot.work.n_predicted_tokens == 50
    assert snapshot.work.n_prompt_tokens == 30
    assert snapshot.tokens_per_second > 0
    assert 0 < snapshot.gap_ms_p50 < 50
    assert snapshot.decode_ms > 0
    assert snapshot.is_alive


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"model": Path("/none.gguf")}, "cannot read"),
        ({"n_slots": 1000}, "at most"),
        ({"n_batch": 2, "n_slots": 4}, "batch-size"),
        ({"n_ctx": 8, "n_slots": 8}, "raise -c or lower -np"),
        ({"cache_type_k": "f17"}, "cache-type-k"),
    ],
)
def test_a_start_that_fails_is_one_sentence(byte_model: Path, wrong: dict[str, object], reason: str) -> None:
    engine = Engine(config(byte_model, **wrong), lambda events: None)
    with pytest.raises(LoadFailed, match=reason):
        engine.start()
    engine.stop()


def test_stop_ends_the_thread_in_the_middle_of_work(byte_model: Path) -> None:
    n_before = threading.active_count()
    with Recorded(config(byte_model)) as engine:
        engine.submit(task("a", prompt(10), n_predict=-1))
        engine.wait_for(lambda: engine.engine.snapshot().steps > 0)
    assert threading.active_count() == n_before


def test_the_demo_model_continues_text_with_sense() -> None:
    with Recorded(EngineConfig(model=demo_model_path(), n_ctx=512, n_slots=2)) as engine:
        ids = engine.engine.model.tokenize("The capital of France is", add_special=True, parse_special=True)
        (answer,) = engine.run(task("a", ids, n_predict=3, sampling=GREEDY))
    assert "Paris" in answer.text
    assert answer.prompt == "The capital of France is"
    assert answer.timings.prompt_ms > 0
