"""What runs in a worker process of the chaos run: the real worker, reciting.

It journals every attempt that reaches its engine in a file, which outlives a kill.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop

from shared import telemetry
from shared.settings import WorkerSettings
from tests.chaos import fence
from tests.chaos.engine import ScriptedEngine
from worker.app import run
from worker.engine import SequenceKey


class Attempt(NamedTuple):
    job_id: str
    mark: int
    """What tells it from the job's other attempts."""


def work(settings: WorkerSettings, journal: Path, log: Path, scripts: Path | None) -> None:
    """Until it is told to leave. `scripts` is a folder with others than our own."""
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    telemetry.configure("debug", "json", "worker")
    if scripts:
        fence.use_scripts(scripts)
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(key: SequenceKey) -> None:
        os.write(descriptor, f"{key.job_id} {key.attempt}\n".encode())

    uvloop.run(run(settings, make_engine=partial(ScriptedEngine, note=note)))


def attempts(journal: Path) -> list[Attempt]:
    """What a worker wrote into its journal; nothing when it did not come so far."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [Attempt(job_id, int(mark)) for job_id, mark in map(str.split, lines)]
