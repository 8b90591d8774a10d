"""An engine that recites: in place of `worker.engine.Engine`, behind the real puller, publisher and lease keeper.

A thread with an inbox, as the real one; a step is a sleep in place of a decode.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import Cancelled, Expired
from shared.events import Answer, Failure, StopType, Tokens
from tests.chaos.speech import N_VOCAB, speech, text
from worker.engine import (
    Adapters,
    EngineConfig,
    EngineEvent,
    EngineSnapshot,
    GenerateTask,
    InputRules,
    ModelFacts,
    OnEvents,
    SequenceKey,
)
from worker.engine.llama import LoadedAdapters, LoadWatch

STEP_S = 0.006
N_CTX = 4096
POISON = "poison"
"""A prompt that kills its worker."""


class ByteModel:
    """A vocabulary for the intake: a byte of a prompt is a token."""

    longest_token = 1
    control_texts: frozenset[str] = frozenset()
    control: frozenset[int] = frozenset()
    eog: frozenset[int] = frozenset()
    adapters = LoadedAdapters()

    def __init__(self, path: Path) -> None:
        self.facts = ModelFacts(
            path=path,
            architecture="script",
            description="says what it is to say",
            n_vocab=N_VOCAB,
            n_ctx_train=N_CTX,
            n_embd=1,
            n_params=0,
            size=0,
            vocab_type=0,
            ftype="",
            chat_template="",
            bos=-1,
            eos=-1,
            newline=-1,
            bos_token="",
            eos_token="",
            adds_bos=False,
            can_rewind=True,
        )

    def tokenize(self, prompt: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(prompt.encode())


@dataclass(slots=True)
class _Recital:
    """One sequence: what it has yet to say, behind what earlier attempts said."""

    task: GenerateTask
    said: list[int]
    ahead: deque[Tokens]

    @classmethod
    def of(cls, task: GenerateTask) -> _Recital:
        ahead = deque(speech(task.key.job_id, task.request.n_predict))
        n_said = 0
        while ahead and n_said < len(task.produced):
            n_said += len(ahead.popleft().ids)
        return cls(task, list(task.produced), ahead)

    def step(self) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        if self.ahead:
            events.append(self.ahead.popleft())
            self.said += events[0].ids
        if not self.ahead:
            events.append(self._answer())
        return events

    def _answer(self) -> Answer:
        return Answer(
            text=text(self.said),
            ids=tuple(self.said),
            prompt="",
            prompt_tokens=len(self.task.prompt),
            stop_type=StopType.LIMIT,
            seed=self.task.seed,
        )


class ScriptedEngine:
    """The part of the engine's surface that a worker uses. `note` is told of every task as it is submitted."""

    def __init__(self, config: EngineConfig, on_events: OnEvents, note: Callable[[SequenceKey], None]) -> None:
        self.model = ByteModel(config.model)
        self.n_ctx_slot, self.can_generate, self.input_rules = N_CTX, True, InputRules()
        self.grammars = self.vision = None
        self.adapters, self.loading = Adapters(), LoadWatch()
        self.config = config
        self._on_events = on_events
        self._note = note
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._is_stopping = False
        self._is_resting = True
        self._progress_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="recite", daemon=True)
        # Below: the thread's alone.
        self._waiting: list[GenerateTask] = []
        self._running: list[_Recital] = []
        self._lines: list[tuple[SequenceKey, EngineEvent]] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        self._wake.set()
        self._thread.join()

    def submit(self, task: GenerateTask) -> None:
        self._note(task.key)
        self._send(lambda: self._waiting.append(task))

    def cancel(self, job_id: str) -> None:
        failure = Failure.of(Cancelled("the job was cancelled"))
        self._send(lambda: self._end(lambda key: key.job_id == job_id, failure))

    def discard(self, job_id: str, attempt: int = 0) -> None:
        self._send(lambda: self._end(lambda key: (key.job_id, key.attempt) == (job_id, attempt), None))

    def snapshot(self) -> EngineSnapshot:
        return EngineSnapshot(
            progress_at=self._progress_at, is_busy=not self._is_resting, is_alive=self._thread.is_alive()
        )

    def _send(self, message: Callable[[], None]) -> None:
        self._inbox.append(message)
        self._wake.set()

    def _run(self) -> None:
        while not self._is_stopping:
            self._progress_at = time.monotonic()
            if self._inbox or self._waiting or self._running:
                self._is_resting = False
                self._step()
            else:
                self._is_resting = True
                self._wake.wait()

    def _step(self) -> None:
        self._wake.clear()
        while self._inbox:
            self._inbox.popleft()()
        self._admit()
        time.sleep(STEP_S)
        for recital in self._running:
            self._lines += [(recital.task.key, event) for event in recital.step()]
        ended = {key for key, event in self._lines if isinstance(event, Answer)}
        self._running = [recital for recital in self._running if recital.task.key not in ended]
        self._expire()
        lines, self._lines = self._lines, []
        if lines:
            self._on_events(lines)

    def _admit(self) -> None:
        self._waiting.sort(key=lambda task: task.lane.value == "bulk")
        while self._waiting and len(self._running) < self.config.n_slots:
            task = self._waiting.pop(0)
            if task.request.prompts == (POISON,):
                os.kill(os.getpid(), signal.SIGKILL)
            self._running.append(_Recital.of(task))

    def _expire(self) -> None:
        now = time.monotonic()
        overdue = {task.key for task in self._tasks() if task.deadline is not None and task.deadline < now}
        if overdue:
            self._end(lambda key: key in overdue, Failure.of(Expired("the deadline passed")))

    def _end(self, is_going: Callable[[SequenceKey], bool], failure: Failure | None) -> None:
        if failure:
            self._lines += [(task.key, failure) for task in self._tasks() if is_going(task.key)]
        self._waiting = [task for task in self._waiting if not is_going(task.key)]
        self._running = [recital for recital in self._running if not is_going(recital.task.key)]

    def _tasks(self) -> Sequence[GenerateTask]:
        return [*self._waiting, *(recital.task for recital in self._running)]
