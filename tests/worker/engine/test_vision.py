"""Prompts with images, from pixels to text, on tiny projectors of three kinds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from shared.errors import InvalidRequest
from shared.events import Answer, Failure, Progress
from shared.jobs import Lane
from tests.models import (
    BYTE_EOS,
    ProjectorKind,
    write_byte_model,
    write_projector,
    write_recurrent_model,
    write_sliding_model,
    write_two_dimensional_model,
)
from tests.worker.engine.faulty import Decode, Fault, Faults
from tests.worker.engine.harness import EXACT, GREEDY, Recorded, config, task
from tests.worker.engine.looking import Part, looking, native_greedy, picture, projector_of
from worker.engine import EngineEvent, GenerateTask, Placed, SequenceKey
from worker.engine.llama import Context, Interrupt
from worker.engine.sampling import Sampler, Setting

KINDS: tuple[ProjectorKind, ...] = ("mlp", "gemma3", "qwen2vl_merger")
N_ROWS = {"mlp": 16, "gemma3": 4, "qwen2vl_merger": 9}
"""Of a picture."""
END = {"mlp": "", "gemma3": "<end_of_image>", "qwen2vl_merger": "<|vision_end|>"}
MARKS = {
    "mlp": "<__media__>",
    "gemma3": "<start_of_image><__media__><end_of_image>",
    "qwen2vl_merger": "<|vision_start|><__media__><|vision_end|>",
}
"""What an image is in the prompt that an answer tells."""


class Eye(NamedTuple):
    kind: ProjectorKind
    model: Path
    projector: Path
    engine: Recorded


@pytest.fixture(scope="module", params=KINDS)
def eye(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Eye]:
    folder, kind = tmp_path_factory.mktemp("models"), request.param
    write_model = write_two_dimensional_model if kind == "qwen2vl_merger" else write_byte_model
    model, projector = write_model(folder / "model.gguf"), write_projector(folder / "projector.gguf", kind)
    with Recorded(config(model, projector=projector_of(projector), **EXACT)) as engine:
        yield Eye(kind, model, projector, engine)


@pytest.mark.parametrize(
    "parts",
    [
        ("see: ", picture(1), " what?"),
        (picture(2), "what?"),
        ("what? ", picture(3), "."),
        ("one ", picture(1), picture(2), " two ", picture(1, 20, 90), "?"),
    ],
    ids=["between", "first", "before a byte", "several"],
)
def test_a_text_is_the_one_that_llamacpp_comes_to(eye: Eye, parts: tuple[Part, ...]) -> None:
    [answer] = eye.engine.run(looking(eye.engine, secrets.token_hex(4), *parts, n_predict=32, cache_prompt=False))
    assert list(answer.ids) == native_greedy(eye.model, eye.projector, parts, 32, BYTE_EOS)


def test_slices_of_an_image_are_seen_one_after_the_other(byte_model: Path, tmp_path: Path) -> None:
    projector = write_projector(tmp_path / "p.gguf", sizes=(64, 64, 64, 32, 96, 32))
    parts = ("sliced: ", picture(18, 64, 64), picture(19, 100, 30), " what?")
    with Recorded(config(byte_model, projector=projector_of(projector), **EXACT)) as engine:
        first, again = (engine.run(looking(engine, name, *parts, n_predict=32))[0] for name in ("first", "again"))
    assert first.prompt_tokens == 14 + 16 * (5 + 4)
    assert again.timings.cache_n == first.prompt_tokens - 1
    assert list(first.ids) == list(again.ids) == native_greedy(byte_model, projector, parts, 32, BYTE_EOS)


def unique(eye: Eye, *parts: Part, **more: Any) -> GenerateTask:
    """A task of its own name; its tokens are in `eye`'s cache only if a prompt like it was."""
    return looking(eye.engine, secrets.token_hex(4), *parts, **more)


def test_an_image_is_seen_and_the_same_image_is_seen_again_in_the_cache(eye: Eye) -> None:
    before, behind = "Known? ", " and then?"
    first, again, other = (eye.engine.run(unique(eye, before, picture(n), behind))[0] for n in (11, 11, 12))
    assert first.text == again.text != other.text
    assert first.timings.cache_n == 0
    assert again.timings.cache_n == first.prompt_tokens - 1
    n_mark = first.prompt_tokens - len(before + behind) - N_ROWS[eye.kind] - len(END[eye.kind])
    assert other.timings.cache_n == len(before) + n_mark
    assert first.prompt == f"{before}{MARKS[eye.kind]}{behind}"


def test_a_prompt_that_ends_in_an_image_is_reused_as_far_as_no_image_is_cut(eye: Eye) -> None:
    first, again = (eye.engine.run(unique(eye, "at the end: ", picture(13)))[0] for _ in range(2))
    assert first.text == again.text
    assert again.timings.cache_n == first.prompt_tokens - 1


def test_two_that_come_at_once_with_one_image_compute_it_once(eye: Eye) -> None:
    parts = ("Two at once: ", picture(14), "x" * 40)
    n_before = eye.engine.engine.snapshot().work.n_prompt_tokens
    first, second = eye.engine.run(unique(eye, *parts), unique(eye, *parts))
    assert first.text == second.text
    assert eye.engine.engine.snapshot().work.n_prompt_tokens - n_before == first.prompt_tokens + 1


def test_images_beside_streams_change_nobodys_text(eye: Eye) -> None:
    texts = [task(f"{secrets.token_hex(4)}", bytes(range(at, 60 + at)), n_predict=60) for at in range(2)]
    images = [unique(eye, "beside: ", picture(20 + at), picture(30), "?", n_predict=60) for at in range(2)]
    alone = [eye.engine.run(replace(each, key=named(each, "alone")))[0].text for each in (*texts, *images)]
    together = eye.engine.run(*(replace(each, key=named(each, "together")) for each in (*texts, *images)))
    assert [answer.text for answer in together] == alone
    assert len(set(alone)) == 4


def named(task: GenerateTask, more: str) -> SequenceKey:
    return SequenceKey(task.key.job_id + more, 0)


@pytest.mark.parametrize("eye", ["qwen2vl_merger"], indirect=True)
def test_decodes_of_others_go_on_while_an_image_is_encoded(eye: Eye) -> None:
    engine, large = eye.engine.engine, picture(40, 400, 400)
    stream = task(secrets.token_hex(4), b"A text that goes on", n_predict=400)
    eye.engine.submit(stream)
    eye.engine.wait_for(lambda: len(eye.engine._events[stream.key.job_id]) > 2)
    n_steps = engine.snapshot().steps
    assert engine.vision is not None
    assert engine.vision.picture(secrets.token_bytes(8), lambda: large, 2048, "image 1").n_tokens > 625
    assert engine.snapshot().steps >= n_steps + 20
    assert eye.engine.answer(stream.key.job_id).timings.predicted_n == 400


@pytest.mark.parametrize("eye", ["mlp", "qwen2vl_merger"], indirect=True)
def test_an_image_larger_than_a_batch_is_decoded_in_parts_where_its_rows_see_only_those_before(eye: Eye) -> None:
    parts = ("large: ", picture(41, 130, 100), " and behind it?")
    small = {"n_batch": 8, "n_ubatch": 8, "n_slots": 1}
    with Recorded(config(eye.model, projector=projector_of(eye.projector), **small, **EXACT)) as engine:
        [answer] = engine.run(looking(engine, "j", *parts, n_predict=32))
        [again] = engine.run(looking(engine, "k", *parts, n_predict=32))
    assert list(answer.ids) == list(again.ids) == native_greedy(eye.model, eye.projector, parts, 32, BYTE_EOS)


@pytest.mark.parametrize("eye", ["gemma3"], indirect=True)
def test_an_image_whose_rows_must_be_computed_at_once_and_cannot_be_is_refused(eye: Eye) -> None:
    small = {"n_batch": 8, "n_ubatch": 3, "n_slots": 1}
    with Recorded(config(eye.model, projector=projector_of(eye.projector), **small)) as engine:
        with pytest.raises(InvalidRequest, match="image 1 takes 4 tokens, which this model must compute at once"):
            looking(engine, "j", picture(1))
        engine.submit(replace(unique(eye, picture(1)), key=SequenceKey("k", 0)))
        refusal = engine.ending("k")
    assert isinstance(refusal, Failure) and refusal.code == "invalid_request"


def test_bulk_that_is_parked_in_its_image_goes_on_as_if_nothing_had_been(eye: Eye) -> None:
    parts = ("parked: ", picture(42, 130, 100), picture(43), "?")
    small = {"n_batch": 8, "n_ubatch": 8, "n_slots": 1}
    expected = native_greedy(eye.model, eye.projector, parts, 40, BYTE_EOS)

    def look(key: SequenceKey, event: EngineEvent) -> None:
        if key.job_id == "bulk" and isinstance(event, Progress) and not engine._events["person"]:
            engine.submit(looking(engine, "person", "me first ", picture(44), n_predict=20))
            engine._events["person"].append(event)

    with Recorded(config(eye.model, projector=projector_of(eye.projector), **small, **EXACT), look) as engine:
        engine.submit(looking(engine, "bulk", *parts, n_predict=40, lane=Lane.BULK))
        assert engine.answer("person").timings.predicted_n == 20
        assert not engine.has_ended("bulk")
        assert list(engine.answer("bulk").ids) == expected


def test_a_cache_too_small_for_all_gives_up_ends_of_prompts_and_no_text_changes(eye: Eye) -> None:
    prompts = [("a" * 30, picture(50 + at), "b" * (40 + at), picture(60 + at), "?") for at in range(6)]
    alone = [eye.engine.run(unique(eye, *parts, n_predict=30))[0].text for parts in prompts]
    tight = config(eye.model, projector=projector_of(eye.projector), n_ctx=512, n_ctx_slot=256, n_slots=4, **EXACT)
    with Recorded(tight) as engine:
        for round in range(2):
            tasks = [looking(engine, f"{round}/{at}", *parts, n_predict=30) for at, parts in enumerate(prompts)]
            assert [answer.text for answer in engine.run(*tasks)] == alone


def test_bulk_in_its_image_is_interrupted_for_a_person_and_says_what_it_would_have(eye: Eye) -> None:
    parts = ("interrupted: ", picture(45, 300, 300), "?")
    expected = native_greedy(eye.model, eye.projector, parts, 20, BYTE_EOS)
    interrupted: list[int] = []

    class Interrupting(Context):
        """In the first decode of an image a person comes."""

        def _compute(self, interrupt: Interrupt | None) -> int:
            if interrupt is None or self._batch.native.token or interrupted:
                return super()._compute(interrupt)
            interrupt.set()
            interrupted.append(super()._compute(interrupt))
            return interrupted[0]

    settings = config(eye.model, projector=projector_of(eye.projector), n_slots=2, **EXACT)
    with Recorded(settings, open_context=Interrupting.open) as engine:
        engine.engine._pace.observe(0, 16, 16 * 100.0)  # so that it is worth interrupting
        engine.submit(looking(engine, "bulk", *parts, n_predict=20, lane=Lane.BULK))
        assert list(engine.answer("bulk").ids) == expected
    assert interrupted == [2], "llama.cpp's code for it"


@pytest.mark.parametrize(("write_model", "kind"), [(write_recurrent_model, "mlp"), (write_sliding_model, "gemma3")])
def test_a_model_whose_state_cannot_lose_its_end_sees_images_too(
    write_model: Callable[[Path], Path], kind: ProjectorKind, tmp_path: Path
) -> None:
    model, projector = write_model(tmp_path / "m.gguf"), write_projector(tmp_path / "p.gguf", kind)
    parts = ("see: ", picture(46), " what?")
    with Recorded(config(model, projector=projector_of(projector), **EXACT)) as engine:
        first, again = (engine.run(looking(engine, name, *parts, n_predict=20))[0] for name in ("first", "again"))
    assert list(first.ids) == list(again.ids) == native_greedy(model, projector, parts, 20, BYTE_EOS)


FAULTS = {
    "failed": Fault(-3),
    "failed halfway": Fault(-3, is_halfway=True),
    "no cells": Fault(1),
    "no logits": Fault(has_logits=False),
}


def disturbed(eye: Eye, faults: Faults) -> dict[str, str | None]:
    """Texts of two streams and of a prompt with images, None for those that failed."""
    disturbing = config(eye.model, projector=projector_of(eye.projector), **EXACT)
    with Recorded(disturbing, open_context=faults.open) as engine:
        engine.submit(task("a", b"One text", n_predict=30), task("b", b"Another", n_predict=30))
        engine.submit(looking(engine, "c", "both: ", picture(70), picture(71), "?"))
        endings = {name: engine.ending(name) for name in "abc"}
        assert engine.run(task("after", b"and then", n_predict=2))[0].timings.predicted_n == 2
    return {name: ending.text if isinstance(ending, Answer) else None for name, ending in endings.items()}


@pytest.mark.parametrize("name", FAULTS)
def test_a_decode_of_an_image_that_fails_once_changes_no_text(eye: Eye, name: str) -> None:
    seen: list[Decode] = []

    def rule(decode: Decode) -> Fault | None:
        seen.extend([decode] if decode.has_rows else [])
        return FAULTS[name] if decode.has_rows and len(seen) == 2 else None

    expected = disturbed(eye, Faults(lambda decode: None))
    assert None not in expected.values()
    assert disturbed(eye, Faults(rule)) == expected


@pytest.mark.parametrize("name", FAULTS)
def test_an_image_that_cannot_be_decoded_fails_alone(eye: Eye, name: str) -> None:
    expected = disturbed(eye, Faults(lambda decode: None))
    failing = Faults(lambda decode: FAULTS[name] if decode.has_rows else None)
    assert disturbed(eye, failing) == expected | {"c": None}


@pytest.mark.parametrize("eye", ["mlp"], indirect=True)
@pytest.mark.parametrize("penalty", [{"repeat_penalty": 1.3}, {"dry_multiplier": 0.8}, {"frequency_penalty": 0.5}])
def test_penalties_look_back_on_the_text_alone(eye: Eye, penalty: dict[str, float]) -> None:
    sampling = GREEDY.model_copy(update={"repeat_last_n": -1, **penalty})
    seen = unique(eye, "abcd ab", picture(15), "cd abcd", sampling=sampling)
    reshaped = []
    for asked in (seen, task("j", b"abcd abcd abcd", sampling=sampling)):
        [step] = Sampler.of(asked, Setting(n_vocab=258, n_ctx=2048)).reshaping.values()
        ids = step.touched()
        assert len(ids)
        reshaped.append((ids.tolist(), step.reshape(ids, np.ones(len(ids), dtype=np.float32)).tolist()))
    assert reshaped[0] == reshaped[1]


def _moved(asked: GenerateTask) -> GenerateTask:
    first, second = asked.images
    return replace(asked, images=(Placed(first.start + 1, first.rows), second))


def _out_of_order(asked: GenerateTask) -> GenerateTask:
    return replace(asked, images=asked.images[::-1])


def _stray(asked: GenerateTask) -> GenerateTask:
    return replace(asked, prompt=(*asked.prompt, -1))


def _without(asked: GenerateTask) -> GenerateTask:
    return replace(asked, images=())


def _twice(asked: GenerateTask) -> GenerateTask:
    return replace(asked, images=(*asked.images, *asked.images))


def _shifting(asked: GenerateTask) -> GenerateTask:
    return replace(asked, request=asked.request.model_copy(update={"shift": True}))


@pytest.mark.parametrize("spoil", [_moved, _out_of_order, _stray, _without, _twice, _shifting])
def test_a_task_whose_rows_are_not_where_it_says_never_reaches_the_model(
    eye: Eye, spoil: Callable[[GenerateTask], GenerateTask]
) -> None:
    asked = unique(eye, "sound: ", picture(16), picture(17))
    eye.engine.submit(replace(spoil(asked), key=named(asked, "spoilt")))
    refusal = eye.engine.ending(asked.key.job_id + "spoilt")
    assert isinstance(refusal, Failure) and refusal.code in ("invalid_request", "not_supported")
    assert eye.engine.run(asked)[0].timings.predicted_n == 16
