"""Vectors and scores beside generation: what they are, what shares a decode, who has a turn, who fails."""

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from shared.events import Answer, Failure, Score, Tokens, Vector
from shared.jobs import Lane
from tests.models import demo_model_path, write_adapter
from tests.worker.engine.faulty import Decode, Fault, Faults
from tests.worker.engine.harness import Recorded, config, task
from worker.engine import EmbedTask, EngineConfig, EngineEvent, SequenceKey
from worker.engine.adapters import AdapterFile
from worker.engine.llama import Context, ContextParams, Model

Floats = NDArray[np.float32]
SIZES = (1, 30, 7, 7, 19, 2)
"""Of inputs that go into one decode together, in tokens."""


def embed(job_id: str, tokens: list[int], *, norm: int = 2, lane: Lane = Lane.INTERACTIVE, index: int = 0) -> EmbedTask:
    return EmbedTask(SequenceKey(job_id, index), tuple(tokens), norm, lane)


def vector(engine: Recorded, job_id: str) -> Floats:
    ending = engine.ending(job_id)
    assert isinstance(ending, Vector), ending
    return ending.values()


def score(engine: Recorded, job_id: str) -> float:
    ending = engine.ending(job_id)
    assert isinstance(ending, Score), ending
    return ending.score


def failure(engine: Recorded, job_id: str) -> Failure:
    ending = engine.ending(job_id)
    assert isinstance(ending, Failure), ending
    return ending


def some_inputs() -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, size).tolist() for size in SIZES]


def embedded_together(
    path: Path, rule: Callable[[Decode], Fault | None] = lambda _: None, **more: Any
) -> tuple[list[EngineEvent], list[Decode]]:
    """What becomes of inputs that come while another is embedded, and the decodes of them."""
    before = embed("before", [65] * 9)
    after: list[int] = []

    def come(decode: Decode) -> Fault | None:
        if after:
            return rule(decode)
        if decode.n_tokens == 9:
            engine.submit(*(embed(f"in{at}", tokens) for at, tokens in enumerate(some_inputs())))
            after.append(decode.number)
        return None

    faults = Faults(come)
    with Recorded(config(path, **more), open_context=faults.open) as engine:
        engine.submit(before)
        endings = [engine.ending(f"in{at}") for at in range(len(SIZES))]
    return list(endings), faults.decodes[after[0] :]


def vectors(endings: list[EngineEvent]) -> Floats:
    return np.array([ending.values() for ending in endings if isinstance(ending, Vector)])


def alone(path: Path, **more: Any) -> Floats:
    """The same inputs, one after the other."""
    with Recorded(config(path, **more)) as engine:
        for at, tokens in enumerate(some_inputs()):
            engine.submit(embed(f"in{at}", tokens))
            vector(engine, f"in{at}")
        return np.array([vector(engine, f"in{at}") for at in range(len(SIZES))])


def test_a_vector_has_the_models_width_and_length_one(byte_model: Path) -> None:
    with Recorded(config(byte_model)) as engine:
        engine.submit(embed("unit", list(b"hello")), embed("raw", list(b"hello"), norm=-1))
        unit, raw = vector(engine, "unit"), vector(engine, "raw")
    assert unit.shape == (64,)
    assert np.linalg.norm(unit) == pytest.approx(1.0, abs=1e-5)
    assert raw / np.linalg.norm(raw) == pytest.approx(unit, abs=1e-6)


def test_inputs_share_a_decode_where_that_changes_no_vector(byte_model: Path) -> None:
    endings, decodes = embedded_together(byte_model)
    assert [decode.n_tokens for decode in decodes] == [sum(SIZES)]
    assert vectors(endings) == pytest.approx(alone(byte_model), abs=1e-6)


def test_inputs_have_a_decode_each_where_neighbours_would_be_felt(byte_model: Path) -> None:
    """Flash attention rounds to 16 bits, and to others where there are more tokens."""
    endings, decodes = embedded_together(byte_model, flash_attention="on")
    assert [decode.n_tokens for decode in decodes] == list(SIZES)
    assert (vectors(endings) == alone(byte_model, flash_attention="on")).all()


@pytest.mark.parametrize("model", ["encoder_model", "reranker_model"])
def test_what_is_seldom_felt_in_a_small_model_is_found_all_the_same(request: pytest.FixtureRequest, model: str) -> None:
    """GELU is looked up in a table of 16-bit numbers: now and then one falls to the other side."""
    _, decodes = embedded_together(request.getfixturevalue(model))
    assert [decode.n_tokens for decode in decodes] == list(SIZES)


def test_whoever_prefers_speed_has_them_share_decodes_all_the_same(byte_model: Path) -> None:
    endings, decodes = embedded_together(byte_model, flash_attention="on", embedding_batch="on")
    assert [decode.n_tokens for decode in decodes] == [sum(SIZES)]
    expected = alone(byte_model, flash_attention="on")
    assert vectors(endings) == pytest.approx(expected, abs=1e-3)
    assert vectors(endings) != pytest.approx(expected, abs=1e-5)


def test_a_vector_does_not_depend_on_its_neighbours() -> None:
    """On the demo model: its weights are quantized, which is what makes neighbours felt in a common batch."""
    faults = Faults(lambda _: None)
    with Recorded(EngineConfig(demo_model_path(), n_ctx=512, n_slots=2), open_context=faults.open) as engine:
        texts = ["a", "the quick brown fox", "a", "an altogether longer input of several words", "a"]
        inputs = [engine.engine.model.tokenize(text, add_special=True, parse_special=False) for text in texts]
        engine.submit(embed("alone", inputs[1]))
        alone = vector(engine, "alone")
        engine.submit(task("beside", inputs[3], n_predict=8))
        engine.submit(*(embed(f"in{at}", tokens) for at, tokens in enumerate(inputs)))
        together = [vector(engine, f"in{at}") for at in range(len(inputs))]
        engine.answer("beside")
    assert all(len(decode.slots) == 1 for decode in faults.decodes)
    assert together[1] == pytest.approx(alone, abs=1e-5)
    assert together[0] == pytest.approx(together[2], abs=1e-5)
    assert together[0] == pytest.approx(together[4], abs=1e-5)
    assert together[0] != pytest.approx(together[1], abs=1e-2)


@pytest.mark.parametrize("is_spoiled", [False, True])
def test_of_those_that_share_a_failing_decode_only_the_guilty_fails(byte_model: Path, is_spoiled: bool) -> None:
    def rule(decode: Decode) -> Fault | None:
        if decode.n_tokens in (sum(SIZES), 19):
            return Fault(spoils=decode.slots) if is_spoiled else Fault(-3)
        return None

    endings, _ = embedded_together(byte_model, rule)
    expected = alone(byte_model)
    failed = endings.pop(SIZES.index(19))
    assert isinstance(failed, Failure) and failed.code == "engine_failed"
    assert vectors(endings) == pytest.approx(np.delete(expected, SIZES.index(19), axis=0), abs=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_is_what_was_asked_for(byte_model: Path, pooling: str) -> None:
    with Recorded(config(byte_model, pooling=pooling)) as engine:
        engine.submit(embed("whole", list(b"hello")), embed("first", list(b"h")))
        is_first = vector(engine, "whole") == pytest.approx(vector(engine, "first"), abs=1e-4)
    assert is_first == (pooling == "cls")


def test_without_pooling_each_token_has_its_vector_as_it_is(byte_model: Path) -> None:
    with Recorded(config(byte_model, pooling="none")) as engine:
        engine.submit(*(embed(f"norm {norm}", list(b"hello"), norm=norm) for norm in (2, -1)), embed("he", list(b"he")))
        endings = {name: engine.ending(name) for name in ("norm 2", "norm -1", "he")}
    rows = {name: ending.rows() for name, ending in endings.items() if isinstance(ending, Vector)}
    assert rows["norm 2"].shape == (5, 64)
    assert (rows["norm 2"] == rows["norm -1"]).all()
    assert rows["he"] == pytest.approx(rows["norm 2"][:2], abs=1e-4)  # a token sees only those before it
    assert not np.allclose(np.linalg.norm(rows["norm 2"], axis=1), 1)


def test_vectors_of_tokens_are_their_own_inputs_when_many_share_a_decode(byte_model: Path) -> None:
    endings, decodes = embedded_together(byte_model, pooling="none")
    assert [decode.n_tokens for decode in decodes] == [sum(SIZES)]
    rows = [ending.rows() for ending in endings if isinstance(ending, Vector)]
    assert [len(each) for each in rows] == list(SIZES)
    with Recorded(config(byte_model, pooling="none")) as engine:
        for at, tokens in enumerate(some_inputs()):
            engine.submit(embed(f"in{at}", tokens))
            assert vector(engine, f"in{at}").reshape(rows[at].shape) == pytest.approx(rows[at], abs=1e-5)


@pytest.mark.parametrize("n_ubatch", [1, 33, 501])
def test_a_ubatch_may_have_any_size(byte_model: Path, n_ubatch: int) -> None:
    """llama.cpp ends the process where sequences do not divide it, and it pools by the mean."""
    with Recorded(config(byte_model, n_batch=512, n_ubatch=n_ubatch)) as engine:
        engine.submit(embed("fits", [65] * n_ubatch), embed("long", [65] * (n_ubatch + 1)))
        assert vector(engine, "fits").shape == (64,)
        assert f"{n_ubatch} (n_ubatch)" in failure(engine, "long").message


def test_a_score_is_what_the_classifier_makes_of_the_first_token(reranker_model: Path) -> None:
    weights = {tensor.name: tensor.data for tensor in gguf.GGUFReader(reranker_model).tensors}
    with Recorded(config(reranker_model, pooling="cls")) as engine:
        engine.submit(embed("first", [258, *b"where", 257, 259, *b"here", 257], norm=-1))
        first = vector(engine, "first")
    hidden = np.tanh(weights["cls.weight"] @ first + weights["cls.bias"])
    with Recorded(config(reranker_model)) as engine:
        engine.submit(embed("pair", [258, *b"where", 257, 259, *b"here", 257]))
        judged = score(engine, "pair")
    assert judged == pytest.approx(
        float((weights["cls.output.weight"] @ hidden + weights["cls.output.bias"])[0]), abs=1e-3
    )


def test_a_causal_model_judges_by_its_last_token_also_in_parts(judging_model: Path) -> None:
    tokens = np.random.default_rng(1).integers(0, 256, 300).tolist()
    scores = []
    for n_ubatch in (512, 64):
        with Recorded(config(judging_model, n_ubatch=n_ubatch, flash_attention="off")) as engine:
            engine.submit(embed("pair", tokens), embed("other", tokens[:200]))
            scores.append([score(engine, "pair"), score(engine, "other")])
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    assert 0 < scores[0][0] < 1
    assert scores[0][0] != pytest.approx(scores[0][1], abs=1e-3)


def test_inputs_that_cannot_be_embedded_fail_alone_and_name_the_limit(byte_model: Path) -> None:
    with Recorded(config(byte_model, n_ubatch=64)) as engine:
        engine.submit(embed("long", [65] * 65), embed("empty", []), embed("fits", [65] * 64), embed("bad", [65, 10**6]))
        long, empty, bad = (failure(engine, name) for name in ("long", "empty", "bad"))
        assert vector(engine, "fits").shape == (64,)
    assert {each.code for each in (long, empty, bad)} == {"invalid_request"}
    assert "65 tokens" in long.message
    assert "64 (n_ubatch)" in long.message


def test_a_model_has_no_positions_beyond_those_it_was_trained_for(encoder_model: Path) -> None:
    """llama.cpp would look for them behind its table of positions."""
    with Recorded(config(encoder_model, n_batch=2048, n_ubatch=2048)) as engine:
        engine.submit(embed("fits", [65] * 512), embed("long", [65] * 513))
        assert vector(engine, "fits").shape == (64,)
        assert "512 (n_ctx_train)" in failure(engine, "long").message


LONG = {"pooling": "last", "n_ctx": 1200, "n_batch": 64, "n_ubatch": 64, "flash_attention": "off"}


def test_what_is_pooled_by_its_last_token_may_be_as_long_as_a_slots_context(byte_model: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 300).tolist()
    with Recorded(config(byte_model, pooling="last", n_ubatch=512, flash_attention="off")) as engine:
        engine.submit(embed("whole", tokens))
        whole = vector(engine, "whole")
    with Recorded(config(byte_model, **LONG)) as engine:
        engine.submit(embed("parts", tokens), embed("short", tokens[:50]), embed("long", [65] * 301))
        assert vector(engine, "parts") == pytest.approx(whole, abs=1e-5)
        assert vector(engine, "short").shape == (64,)
        assert "300 (n_ctx)" in failure(engine, "long").message


def test_others_go_between_the_parts_of_a_long_input(byte_model: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 300).tolist()
    said: list[str] = []

    def come(decode: Decode) -> Fault | None:
        if decode.slots == {0} and decode.n_tokens == 64 and not said:
            said.append("begun")
            engine.submit(embed("person", tokens[:20]), embed("long person", tokens), task("text", [65], n_predict=3))
        return None

    def look(key: SequenceKey, event: EngineEvent) -> None:
        if isinstance(event, Vector | Answer):
            said.append(key.job_id)

    with Recorded(config(byte_model, **LONG), look, open_context=Faults(come).open) as engine:
        engine.submit(embed("bulk", tokens, lane=Lane.BULK))
        vectors = [vector(engine, name) for name in ("bulk", "long person", "person")]
        engine.answer("text")
        engine.submit(embed("alone", tokens[:20]))
        assert vector(engine, "alone") == pytest.approx(vectors[2], abs=1e-5)
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-5)
    assert said.index("person") < said.index("bulk") < said.index("long person")


def test_a_long_input_that_is_cancelled_between_its_parts_leaves_nothing_behind(byte_model: Path) -> None:
    first, second = np.random.default_rng(0).integers(0, 256, (2, 300)).tolist()

    def cancel(decode: Decode) -> Fault | None:
        if decode.slots == {0} and decode.n_tokens == 64:
            engine.engine.cancel("gone")
        return None

    faults = Faults(cancel)
    with Recorded(config(byte_model, **LONG), open_context=faults.open) as engine:
        engine.submit(embed("gone", first))
        assert failure(engine, "gone").code == "cancelled"
        engine.submit(embed("next", second))
        after = vector(engine, "next")
        assert len(engine.events("gone")) == 1
    assert faults.n_openings == 0  # nor had the context to be made anew
    with Recorded(config(byte_model, **LONG)) as engine:
        engine.submit(embed("next", second))
        assert vector(engine, "next") == pytest.approx(after, abs=1e-6)


@pytest.mark.parametrize("n_failing", [1, 2])
def test_a_part_that_fails_is_begun_anew_once(byte_model: Path, n_failing: int) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 300).tolist()
    n_failed: list[int] = []

    def rule(decode: Decode) -> Fault | None:
        if decode.n_tokens == 300 % 64 and len(n_failed) < n_failing:
            n_failed.append(decode.number)
            return Fault(-3)
        return None

    with Recorded(config(byte_model, **LONG), open_context=Faults(rule).open) as engine:
        engine.submit(embed("long", tokens))
        ending = engine.ending("long")
        engine.submit(embed("next", tokens))
        after = vector(engine, "next")
    if n_failing == 1:
        assert isinstance(ending, Vector) and ending.values() == pytest.approx(after, abs=1e-6)
    else:
        assert isinstance(ending, Failure) and ending.code == "engine_failed"


@pytest.mark.parametrize("code", [1, 2, -1, -2, -3])
def test_an_input_that_fails_is_tried_once_more_and_then_fails_alone(byte_model: Path, code: int) -> None:
    failing = {1, 3, 4}
    faults = Faults(lambda decode: Fault(code) if decode.number in failing else None)
    with Recorded(config(byte_model, embedding_batch="off"), open_context=faults.open) as engine:
        engine.submit(*(embed(f"in{at}", list(b"hello")) for at in range(3)))
        first, last = vector(engine, "in0"), vector(engine, "in2")
        assert failure(engine, "in1").code == "engine_failed"
    assert first == pytest.approx(last, abs=1e-6)


@pytest.mark.parametrize("length", [5, 300])
def test_a_context_that_cannot_be_had_again_is_tried_for_again_with_each_input(byte_model: Path, length: int) -> None:
    faults = Faults(lambda decode: Fault(-3) if len(faults.decodes) == 1 else None, n_good_openings=0)
    with Recorded(config(byte_model, **LONG, embedding_batch="off"), open_context=faults.open) as engine:
        for name in ("first", "second"):
            engine.submit(embed(name, [65] * length))
            assert failure(engine, name).message == "there is no memory for it"
        faults.n_good_openings = 1000
        engine.submit(embed("third", [65] * length))
        assert vector(engine, "third").shape == (64,)
    assert faults.n_openings == 3


def test_a_worker_that_only_embeds_has_no_context_to_generate_with(byte_model: Path) -> None:
    opened: list[ContextParams] = []

    def open_context(model: Model, params: ContextParams) -> Context:
        opened.append(params)
        return Context.open(model, params)

    with Recorded(config(byte_model, embeds_only=True), open_context=open_context) as engine:
        engine.submit(task("text", [65], n_predict=2), embed("vector", [65]))
        assert failure(engine, "text").code == "not_supported"
        assert vector(engine, "vector").shape == (64,)
        assert not engine.engine.can_generate
        assert engine.engine.n_ctx_slot == 512
    assert [params.pooling for params in opened] == ["mean"]


def test_a_model_that_was_not_made_to_rerank_may_try_and_it_is_said(
    byte_model: Path, reranker_model: Path, judging_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path, is_said in ((reranker_model, False), (judging_model, False), (byte_model, True)):
        with Recorded(config(path, pooling="rank", embeds_only=True)) as engine:
            engine.submit(embed("pair", list(b"who me")))
            assert np.isfinite(score(engine, "pair"))
        assert any("may mean nothing" in record.message for record in caplog.records) == is_said


def test_an_input_has_the_adapters_that_were_usual_when_it_came(byte_model: Path, tmp_path: Path) -> None:
    adapter = AdapterFile(write_adapter(tmp_path / "adapter.gguf"))
    inputs = {"with": (1.0,), "without": (0.0,), "with again": (1.0,)}
    with Recorded(config(byte_model, adapters=(adapter,))) as engine:
        for name, scales in inputs.items():
            engine.submit(EmbedTask(SequenceKey(name, 0), tuple(b"hello"), scales=scales))
        with_it, without, again = (vector(engine, name) for name in inputs)
    with Recorded(config(byte_model)) as engine:
        engine.submit(embed("bare", list(b"hello")))
        assert vector(engine, "bare") == pytest.approx(without, abs=1e-6)
    assert with_it == pytest.approx(again, abs=1e-6)
    assert with_it != pytest.approx(without, abs=1e-2)


def test_embeddings_and_generation_take_turns(byte_model: Path) -> None:
    """While there is both, neither has more than a turn before the other has one."""
    said: list[type[EngineEvent]] = []

    def look(key: SequenceKey, event: EngineEvent) -> None:
        if isinstance(event, Tokens | Vector):
            said.append(type(event))

    with Recorded(config(byte_model, n_batch=64, n_ubatch=64), look) as engine:
        engine.submit(task("text", list(b"hello"), n_predict=60))
        engine.submit(*(embed(f"in{at}", [65 + at] * 60) for at in range(40)))
        engine.answer("text")
        for at in range(40):
            vector(engine, f"in{at}")
        snapshot = engine.engine.snapshot()
    both = said[said.index(Vector) : len(said) - said[::-1].index(Tokens)]
    runs = {kind: [len(list(group)) for each, group in groupby(both) if each is kind] for kind in (Tokens, Vector)}
    assert len(runs[Vector]) >= 15
    assert max(runs[Tokens][:15]) <= 2
    assert max(runs[Vector]) <= 4
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
        engine.engine._input_pace.observe(0, 1000, 10.0)  # so cheap that a turn takes a whole batch
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
