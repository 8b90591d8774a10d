"""Sets of adapters on one model: which a request gets, and with whom it shares a batch and cells."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.errors import InvalidRequest
from shared.events import Failure, Tokens
from shared.jobs import Adapter, Lane
from tests.models import write_adapter
from tests.worker.engine.harness import EXACT, Recorded, config, task
from worker.engine import EngineEvent, GenerateTask, LoadFailed, SequenceKey
from worker.engine.adapters import AdapterFile, Adapters, Defaults, Scales
from worker.engine.llama import Context, ContextParams, Decoded, Model, Piece

NONE, FIRST, HALF, SECOND, BOTH = (0.0, 0.0), (1.0, 0.0), (0.5, 0.0), (0.0, 1.0), (1.0, 1.0)
PROMPT = [*b"Say what there is to be said, whatever you have learnt since you left"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[AdapterFile, ...]:
    folder = tmp_path_factory.mktemp("adapters")
    return tuple(AdapterFile(write_adapter(folder / f"{seed}.gguf", seed=seed)) for seed in (1, 2))


@pytest.fixture(scope="module")
def engine(byte_model: Path, files: tuple[AdapterFile, ...]) -> Iterator[Recorded]:
    with Recorded(config(byte_model, adapters=files, **EXACT)) as started:
        yield started


@pytest.fixture(scope="module")
def alone(engine: Recorded) -> dict[Scales, str]:
    """What each set says by itself."""
    return {scales: said(engine, asked(f"alone {scales}", scales)) for scales in (NONE, FIRST, HALF, SECOND, BOTH)}


def asked(job_id: str, scales: Scales, prompt: list[int] = PROMPT, **more: Any) -> GenerateTask:
    return task(job_id, prompt, scales=scales, **more)


def said(engine: Recorded, task: GenerateTask) -> str:
    return engine.run(task)[0].text


def test_an_adapter_changes_what_is_said_as_far_as_its_scale_goes(byte_model: Path, alone: dict[Scales, str]) -> None:
    with Recorded(config(byte_model, **EXACT)) as bare:
        assert alone[NONE] == said(bare, task("bare", PROMPT))
    assert len(set(alone.values())) == len(alone)


def test_sets_that_come_at_once_say_what_each_says_alone(engine: Recorded, alone: dict[Scales, str]) -> None:
    tasks = {scales: asked(f"at once {scales}", scales, cache_prompt=False) for scales in alone}
    answers = engine.run(*tasks.values())
    assert {scales: answer.text for scales, answer in zip(tasks, answers, strict=True)} == alone


def test_a_beginning_is_lent_among_equal_sets_only(engine: Recorded, alone: dict[Scales, str]) -> None:
    again = {scales: engine.run(asked(f"again {scales}", scales))[0] for scales in alone}
    assert {answer.timings.cache_n for answer in again.values()} == {len(PROMPT) - 1}, "each has its own"
    assert {scales: answer.text for scales, answer in again.items()} == alone
    [other] = engine.run(asked("other", (0.25, 0.0)))
    assert other.timings.cache_n == 0
    assert other.text not in alone.values()


@pytest.mark.parametrize("lane", list(Lane))
def test_nobody_waits_for_a_beginning_that_is_computed_with_other_adapters(
    engine: Recorded, alone: dict[Scales, str], lane: Lane
) -> None:
    prompt = [*PROMPT, *PROMPT, *PROMPT]
    tasks = [asked(f"{lane} {scales}", scales, prompt, lane=lane) for scales in (NONE, FIRST, SECOND)]
    texts = [answer.text for answer in engine.run(*tasks)]
    assert texts == [said(engine, asked(f"{lane} alone {each.scales}", each.scales, prompt)) for each in tasks]


def test_a_person_with_other_adapters_goes_before_bulk_which_then_says_what_it_would_have(
    byte_model: Path, files: tuple[AdapterFile, ...]
) -> None:
    heard: list[str] = []

    def look(key: SequenceKey, event: EngineEvent) -> None:
        if isinstance(event, Tokens):
            heard.append(key.job_id)
            if heard.count("bulk") == 20 and "person" not in heard:
                engine.submit(person)

    bulk = asked("bulk", FIRST, n_predict=60, lane=Lane.BULK, cache_prompt=False)
    person = asked("person", SECOND, n_predict=20)
    with Recorded(config(byte_model, adapters=files, **EXACT), look) as engine:
        alone = said(engine, replace(bulk, key=SequenceKey("alone", 0)))
        assert engine.run(bulk)[0].text == alone
        engine.answer("person")
    before = heard.index("person") - heard.index("bulk")
    during = heard[heard.index("person") : len(heard) - heard[::-1].index("person")]
    assert before <= 22, "what was being decoded when it came, and the text of that"
    assert set(during) == {"person"}


@pytest.mark.parametrize("scale", [3e38, -3e38, 1e20])
def test_a_scale_that_gives_no_numbers_fails_alone_and_leaves_the_others_their_words(
    engine: Recorded, alone: dict[Scales, str], scale: float
) -> None:
    tasks = {scales: asked(f"beside {scale} {scales}", scales, cache_prompt=False) for scales in (NONE, FIRST)}
    mad = asked(f"mad {scale}", (scale, scale), n_predict=4)
    engine.submit(*tasks.values(), mad)
    ending = engine.ending(mad.key.job_id)
    assert isinstance(ending, Failure) or ending.text
    assert {scales: engine.answer(each.key.job_id).text for scales, each in tasks.items()} == {
        scales: alone[scales] for scales in tasks
    }
    assert said(engine, asked(f"after {scale}", NONE)) == alone[NONE]


def test_a_default_that_changes_makes_what_was_cached_useless_until_it_is_what_it_was(
    byte_model: Path, files: tuple[AdapterFile, ...]
) -> None:
    def answer() -> tuple[int, str]:
        scales = engine.engine.adapters.scales(None)
        [said] = engine.run(asked(f"job {len(engine._events)}", scales))
        return said.timings.cache_n, said.text

    with Recorded(config(byte_model, adapters=files, **EXACT)) as engine:
        (n_first, text), (n_again, text_again) = answer(), answer()
        engine.engine.adapters.set_defaults([Adapter(id=1, scale=0.5)])
        n_changed, changed = answer()
        engine.engine.adapters.set_defaults([Adapter(id=id, scale=1.0) for id in range(2)])
        n_back, text_back = answer()
    assert (n_first, n_again, n_changed, n_back) == (0, len(PROMPT) - 1, 0, len(PROMPT) - 1)
    assert text == text_again == text_back != changed


def test_a_context_computes_with_the_set_that_it_was_given_last_also_when_it_is_made_anew(
    byte_model: Path, files: tuple[AdapterFile, ...]
) -> None:
    def logits() -> list[float]:
        context.clear()
        outcome = context.decode([Piece(0, 0, np.array(PROMPT, dtype=np.int32), True)])
        assert isinstance(outcome, Decoded)
        return outcome.logits[0].tolist()

    with Model.load(byte_model) as model:
        model.load_adapters([file.path for file in files])
        params = ContextParams(n_ctx=256, n_batch=256, n_ubatch=256, n_seq_max=1, n_threads=1, n_threads_batch=1)
        with Context.open(model, params) as context:
            plain = logits()
            context.adapt(FIRST)
            first = logits()
            context.reopen()
            again = logits()
            context.adapt(BOTH)
            both = logits()
            context.adapt(NONE)
            assert logits() == plain
    assert first == again
    assert plain != first != both != plain


def test_a_state_that_cannot_be_cut_is_not_reused_with_other_adapters_either(
    recurrent_model: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "r.gguf", architecture="mamba", tensor="ssm_out", n_in=128)
    with Recorded(config(recurrent_model, adapters=(AdapterFile(adapter),), **EXACT)) as engine:
        first, again, other = (
            engine.run(asked(name, scales))[0] for name, scales in (("a", (1.0,)), ("b", (1.0,)), ("c", (0.0,)))
        )
        longer = engine.run(asked("d", (0.0,), [*PROMPT, *first.ids]))[0]
    assert first.text == again.text != other.text
    assert longer.timings.cache_n == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "is no LoRA adapter for this model: model arch and LoRA arch mismatch"),
        ({"n_in": 32}, "is no LoRA adapter for this model: tensor 'blk.0.attn_output.weight' has incorrect shape"),
        ({"n_layers": 3}, "is no LoRA adapter for this model: LoRA tensor 'blk.2.attn_output.weight' does not exist"),
        ({"kind": "ia3"}, "is no LoRA adapter for this model: expect adapter.type to be 'lora', but got: ia3"),
        ({"invocation": (65, 66)}, "is an activated LoRA, which works from certain tokens on: that is not supported"),
        ("model", "is no LoRA adapter for this model: expect general.type to be 'adapter'"),
        (b"GGUF and no more", "is no LoRA adapter for this model: this GGUF file is version"),
        (b"PK", "is not a GGUF file"),
        (None, "no such file or directory"),
    ],
    ids=str,
)
def test_what_is_no_adapter_of_this_model_is_one_sentence_that_names_the_file(
    byte_model: Path, files: tuple[AdapterFile, ...], tmp_path: Path, content: Any, message: str
) -> None:
    path = tmp_path / "other.gguf"
    match content:
        case dict():
            write_adapter(path, architecture="llama" if content else "mamba", **content)
        case bytes():
            path.write_bytes(content)
        case "model":
            path = byte_model
    engine = Recorded(config(byte_model, adapters=(*files, AdapterFile(path)))).engine
    with pytest.raises(LoadFailed) as failed:
        engine.start()
    assert message in str(failed.value)
    assert str(path) in str(failed.value)
    assert "\n" not in str(failed.value)


NAMED: list[tuple[list[Adapter] | None, Scales]] = [
    (None, (1.0, 0.5)),
    ([], (0.0, 0.0)),
    ([Adapter(id=1, scale=-0.0)], (0.0, 0.0)),
    ([Adapter(id=0, scale=-2.5), Adapter(id=1, scale=1.0)], (-2.5, 1.0)),
    ([Adapter(id=1, scale=1.0), Adapter(id=1, scale=3.0)], (0.0, 3.0)),
    ([Adapter(id=0, scale=1e-60)], (0.0, 0.0)),
]


@pytest.mark.parametrize(("named", "scales"), NAMED)
def test_a_set_is_what_is_named_and_nothing_of_the_others(named: list[Adapter] | None, scales: Scales) -> None:
    adapters = Adapters([AdapterFile(Path("a")), AdapterFile(Path("b"), 0.5)])
    assert adapters.scales(named) == scales
    assert str(adapters.scales(named)) == str(scales), "equal sets are one key, whatever the sign of their zeros"


def test_scales_that_llama_cpp_cannot_tell_apart_are_one() -> None:
    adapters = Adapters([AdapterFile(Path("a"), 0.1)])
    assert adapters.scales([Adapter(id=0, scale=0.1)]) == adapters.scales([Adapter(id=0, scale=0.10000000001)])
    assert adapters.scales([Adapter(id=0, scale=0.1)]) == adapters.defaults.scales


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (Adapter(id=2, scale=1.0), "Field 'lora': there is no adapter 2: there are 2, from 0 on"),
        (Adapter(id=10**30, scale=1.0), "Field 'lora': there is no adapter"),
        (Adapter.model_construct(id=-1, scale=1.0), "Field 'lora': there is no adapter -1"),
    ],
)
def test_an_adapter_that_is_not_there_is_refused(adapter: Adapter, message: str) -> None:
    adapters = Adapters([AdapterFile(Path("a")), AdapterFile(Path("b"))])
    for call in (adapters.scales, adapters.set_defaults):
        with pytest.raises(InvalidRequest) as refused:
            call([adapter])
        assert refused.value.param == "lora"
        assert refused.value.message.startswith(message)
    assert adapters.defaults == Defaults((1.0, 1.0))


def test_scales_that_were_set_later_stay() -> None:
    adapters = Adapters([AdapterFile(Path("a"))])
    told: list[Scales] = []
    adapters.on_change = lambda: told.append(adapters.defaults.scales)
    adapters.adopt(Defaults((0.25,), set_at=100.0))
    assert adapters.set_defaults([Adapter(id=0, scale=0.5)]) == (0.5,)
    adapters.adopt(Defaults((0.75,), set_at=200.0))
    assert told == [(0.25,), (0.5,)]
    assert adapters.defaults.scales == (0.5,)


def test_what_is_set_counts_though_what_was_taken_over_comes_from_a_clock_that_is_ahead() -> None:
    adapters = Adapters([AdapterFile(Path("a"))])
    ahead = Defaults((0.25,), set_at=time.time() + 3600)
    adapters.adopt(ahead)
    for scale in (0.5, 0.75):
        assert adapters.set_defaults([Adapter(id=0, scale=scale)]) == adapters.defaults.scales == (scale,)
    adapters.adopt(ahead)
    assert adapters.defaults.scales == (0.75,)


def test_workers_that_hear_of_changes_in_different_orders_end_with_the_same() -> None:
    now = time.time()
    for times in ((now, now + 1.0), (now, now)):
        changes = [([Adapter(id=0, scale=scale)], at) for scale, at in zip((0.5, 0.25), times, strict=True)]
        ends = set()
        for order in (changes, changes[::-1]):
            adapters = Adapters([AdapterFile(Path("a"))])
            for change in order:
                adapters.set_defaults(*change)
            ends.add(adapters.defaults)
        assert len(ends) == 1


@pytest.mark.parametrize("scales", [(), (1.0,), (1.0, 1.0, 1.0), (float("nan"), 0.0)])
def test_a_set_that_does_not_fit_never_reaches_llama_cpp(engine: Recorded, scales: Scales) -> None:
    engine.submit(refused := asked(f"unfit {scales}", scales))
    ending = engine.ending(refused.key.job_id)
    assert isinstance(ending, Failure)
    assert (ending.code, ending.param) == ("invalid_request", "lora")


def test_a_worker_without_adapters_says_how_it_gets_some() -> None:
    with pytest.raises(InvalidRequest, match=r"^Field 'lora': this worker has no adapters \(`--lora` loads them\)$"):
        Adapters().scales([Adapter(id=0, scale=1.0)])
