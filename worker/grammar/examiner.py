"""Has constraints tried out by a process of their own, and starts another one when it does not come back from it.

For threads that may wait: a verdict takes some milliseconds, at most `PATIENCE_S`.
"""

from __future__ import annotations

import pickle
import select
import subprocess
import sys
import threading
from types import TracebackType
from typing import NamedTuple, Self

from shared.jobs import Constraint
from worker.grammar.vocabulary import Vocabulary

PATIENCE_S = 30.0
"""The trial ends itself by its own time on the processor; this is for a machine on which it gets none."""


class Verdict(NamedTuple):
    """Of one constraint: itself in llguidance's notation, or why it cannot be used, in one line."""

    lark: str = ""
    reason: str = ""


TOO_MUCH = Verdict(reason="it takes too much time or memory")


class Examiner:
    """One constraint is tried at a time. The process is started when it is first needed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._trial: subprocess.Popen[bytes] | None = None

    def examine(self, constraint: Constraint) -> Verdict:
        with self._lock:
            try:
                trial = self._started()
                _send(trial, constraint)
                assert trial.stdout is not None
                if select.select([trial.stdout], [], [], PATIENCE_S)[0]:
                    verdict: Verdict = pickle.load(trial.stdout)
                    return verdict
            except (EOFError, BrokenPipeError):
                pass
            self._end()
            return TOO_MUCH

    def close(self) -> None:
        with self._lock:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._trial is None:
            command = [sys.executable, "-m", "worker.grammar.trial"]
            self._trial = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            _send(self._trial, self._vocabulary)
        return self._trial

    def _end(self) -> None:
        if self._trial is None:
            return
        self._trial.kill()
        self._trial.wait()
        for pipe in (self._trial.stdin, self._trial.stdout):
            assert pipe is not None
            pipe.close()
        self._trial = None


def _send(trial: subprocess.Popen[bytes], value: Vocabulary | Constraint) -> None:
    assert trial.stdin is not None
    pickle.dump(value, trial.stdin)
    trial.stdin.flush()
