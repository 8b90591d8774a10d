"""Has constraints tried out by a process of their own, and starts another one when it does not come back from it.

For threads that may wait: a verdict takes some milliseconds, at most `PATIENCE_S`.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import select
import subprocess
import sys
import threading
from typing import NamedTuple

from shared.errors import EngineFailed
from shared.jobs import Constraint
from worker.closing import Closing
from worker.grammar.lexicon import Lexicon
from worker.grammar.reply import ReplyGrammar

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""The trial ends itself by its own time on the processor; this is for a machine on which it gets none."""


class Verdict(NamedTuple):
    """Of one constraint: itself in llguidance's notation, or why it cannot be used, in one line."""

    lark: str = ""
    reason: str = ""
    took_s: float = 0.0
    """Of the processor."""


READY = Verdict()
"""Said first, when the process can take constraints."""
TOO_MUCH = Verdict(reason="it takes too much time or memory")


class Examiner(Closing):
    """One constraint is tried at a time. The process is started when it is first needed."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self._lock = threading.Lock()
        self._trial: subprocess.Popen[bytes] | None = None

    def examine(self, constraint: Constraint | ReplyGrammar) -> Verdict:
        """Raises EngineFailed when no process can be had for it, or none that gets time on a processor."""
        with self._lock:
            if self._trial is not None and self._trial.poll() is not None:
                self._end()  # somebody else ended it: no constraint is to blame
            trial = self._trial or self._start()
            try:
                _send(trial, constraint)
                verdict = _answer(trial)
            except (EOFError, BrokenPipeError):
                self._end()
                return TOO_MUCH
            if verdict is None:
                self._end()
                raise EngineFailed("constraints cannot be tried on this worker in time")
            return verdict

    def close(self) -> None:
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "worker.grammar.trial"]
        try:
            self._trial = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            _send(self._trial, self._lexicon)
            if _answer(self._trial) == READY:
                return self._trial
        except (OSError, EOFError) as error:
            log.exception("the process that tries constraints does not start", exc_info=error)
        self._end()
        raise EngineFailed("constraints cannot be tried on this worker")

    def _end(self) -> None:
        if self._trial is None:
            return
        self._trial.kill()
        self._trial.wait()
        for pipe in (self._trial.stdin, self._trial.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # of what could not be sent any more
                pipe.close()
        self._trial = None


def _send(trial: subprocess.Popen[bytes], value: Lexicon | Constraint | ReplyGrammar) -> None:
    assert trial.stdin is not None
    pickle.dump(value, trial.stdin)
    trial.stdin.flush()


def _answer(trial: subprocess.Popen[bytes]) -> Verdict | None:
    assert trial.stdout is not None
    waiting = select.poll()
    waiting.register(trial.stdout, select.POLLIN)
    if not waiting.poll(PATIENCE_S * 1e3):
        return None
    verdict: Verdict = pickle.load(trial.stdout)
    return verdict
