"""What comes of a task before its first decode, on a real vocabulary and scripted cells."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.errors import InvalidRequest, PromptTooLong
from shared.events import StopType
from shared.jobs import Lane, SamplerKind, Sampling
from tests.models import BYTE_EOS
from tests.worker.engine.harness import task
from tests.worker.engine.parts import ScriptedCache
from worker.engine.cells import Cells
from worker.engine.constraint import Masks
from worker.engine.launch import Launcher
from worker.engine.llama import Model
from worker.engine.overflow import FullContext

N_CTX = 64


@pytest.fixture(scope="module")
def model(byte_model: Path) -> Iterator[Model]:
    with Model.load(byte_model) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def masks(model: Model) -> Iterator[Masks]:
    with Masks(model.lexicon(), n_threads=1) as opened:
        yield opened


def launcher(model: Model, masks: Masks) -> Launcher:
    return Launcher(model, Cells(ScriptedCache(), 2, n_cells=100), masks, FullContext(N_CTX))


@pytest.mark.parametrize(
    ("n_prompt", "produced", "error"),
    [
        (N_CTX - 1, (), None),
        (N_CTX, (), PromptTooLong),
        (0, (), None),
        (5, (10**6,), InvalidRequest),
    ],
)
def test_what_would_harm_others_is_refused(
    model: Model, masks: Masks, n_prompt: int, produced: tuple[int, ...], error: type | None
) -> None:
    refusal = launcher(model, masks).check(task("a", [65] * n_prompt, produced=produced))
    assert refusal is None if error is None else isinstance(refusal, error)


@pytest.mark.parametrize(
    ("more", "stop_type", "text"),
    [
        ({}, None, ""),
        ({"produced": tuple(b"abc")}, None, ""),
        ({"produced": tuple(b"abc"), "n_predict": 3}, StopType.LIMIT, "abc"),
        ({"produced": (*b"abc", BYTE_EOS)}, StopType.EOS, "abc"),
        ({"produced": tuple(b"abcd"), "stop": ("bc",)}, StopType.WORD, "a"),
        ({"produced": tuple(b"ab"), "stop": ("bc",), "n_predict": 2}, StopType.LIMIT, "ab"),
        ({"prompt": []}, StopType.LIMIT, ""),
    ],
)
def test_what_an_earlier_attempt_brought_to_its_end_is_answered_at_once(
    model: Model, more: dict[str, Any], stop_type: StopType | None, text: str
) -> None:
    answer = launcher(model, masks).answer_at_once(task("a", **({"prompt": list(b"hello")} | more)))
    if stop_type is None:
        assert answer is None
    else:
        assert answer is not None
        assert (answer.stop_type, answer.text, answer.id_slot) == (stop_type, text, -1)


def test_a_sequence_begins_with_all_that_is_known(model: Model, masks: Masks) -> None:
    sampling = Sampling(repeat_penalty=1.2)
    began = task("a", list(b"hello"), produced=tuple(b"you"), sampling=sampling, queue_ms=500.0, lane=Lane.BULK)
    since = time.monotonic() - 2.0
    sequence = launcher(model, masks).launch(began, np.array(list(b"helloyou"), dtype=np.int32), since, 1)
    assert bytes(sequence.resident.tokens[: sequence.resident.n_tokens].tolist()) == b"helloyou"
    assert (sequence.n_prompt, sequence.n_decoded, sequence.transcript.text) == (5, 3, "you")
    assert sequence.resident.is_patient
    assert (sequence.waits_since, sequence.slot) == (since, 1)
    assert 2500.0 <= sequence.clock.queue_ms < 60_000.0
    touched = sequence.sampler.reshaping[SamplerKind.PENALTIES].touched()
    assert sorted(touched.tolist()) == sorted(set(b"helloyou"))
