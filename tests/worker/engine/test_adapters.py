"""Sets of adapters on one model: which a request gets, whom it shares a batch and cells with, and that all have turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models import write_adapter
from tests.worker.engine.harness import EXACT, Recorded, config, task
from worker.engine import GenerateTask
from worker.engine.adapters import AdapterFile, Scales

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
