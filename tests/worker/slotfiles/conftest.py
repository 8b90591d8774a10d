"""Engines with a folder for their slots."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.events import Failure, SlotReport
from shared.jobs import SlotAction
from tests.models import write_byte_model, write_recurrent_model, write_sliding_model, write_two_dimensional_model
from tests.worker.engine.harness import EXACT, Recorded, config
from worker.engine import SequenceKey
from worker.slotfiles import SlotFiles, SlotFolder


class Desk:
    """An engine, and what can be done with its slots."""

    def __init__(self, engine: Recorded, files: SlotFiles) -> None:
        self.engine = engine
        self.files = files
        self._numbers = itertools.count()

    def send(self, action: str, slot: int = 0, filename: str = "a.bin", *, deadline_s: float = 30.0) -> str:
        """The job's id. Raises what the intake would answer with."""
        job_id = f"{action}-{next(self._numbers)}"
        request = SlotAction.model_validate({"action": action, "slot": slot, "filename": filename})
        self.engine.submit(self.files.task(SequenceKey(job_id, 0), request, time.monotonic() + deadline_s))
        return job_id

    def ask(self, action: str, slot: int = 0, filename: str = "a.bin") -> SlotReport:
        report = self.ending(self.send(action, slot, filename))
        assert isinstance(report, SlotReport), report
        return report

    def ending(self, job_id: str) -> SlotReport | Failure:
        ending = self.engine.ending(job_id)
        assert isinstance(ending, SlotReport | Failure)
        return ending


OpenDesk = Callable[..., Any]


@contextmanager
def open_desk(model: Path, folder: Path, **more: Any) -> Iterator[Desk]:
    with ExitStack() as stack:
        engine = Recorded(config(model, **{"n_slots": 2, **EXACT, **more}))
        files = SlotFiles(SlotFolder(folder), engine.engine, engine.post)
        stack.callback(files.close)
        stack.enter_context(engine)
        yield Desk(engine, files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "slots").mkdir()
    return tmp_path / "slots"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each kind of cache, and a stranger of the first's shape."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "attention": write_byte_model(folder / "bytes.gguf"),
        "recurrent": write_recurrent_model(folder / "recurrent.gguf"),
        "sliding": write_sliding_model(folder / "sliding.gguf"),
        "two dimensions": write_two_dimensional_model(folder / "two.gguf"),
        "stranger": write_byte_model(folder / "stranger.gguf", seed=1),
    }


@pytest.fixture
def desk(models: dict[str, Path], folder: Path) -> Iterator[Desk]:
    with open_desk(models["attention"], folder) as opened:
        yield opened
