"""An engine whose events are kept, and waited for."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from shared.events import Answer, Failure, Score, SlotReport, Tokens, Vector
from shared.jobs import Generation, Sampling
from worker.engine import Engine, EngineConfig, EngineEvent, GenerateTask, SequenceKey, Task
from worker.engine.llama import Context, ContextParams, Decoded, Model, Piece
from worker.engine.sampling import Bias

PATIENCE_S = 30.0

GREEDY = Sampling(temperature=0.0, ignore_eos=True)
"""Forced to go on, so that a random model's text has the length that was asked for."""
EXACT = {"flash_attention": "off", "cache_type_k": "f32", "cache_type_v": "f32"}
"""Else what shares a batch shifts logits by some thousandths, which a long text or a hot draw tells apart."""


def config(model: Path, /, **more: Any) -> EngineConfig:
    """Small and with one thread, so that two builds of it compute alike."""
    values: dict[str, Any] = {"model": model, "n_ctx": 2048, "n_slots": 4, "n_batch": 512}
    return EngineConfig(**(values | more))


def task(job_id: str, prompt: Sequence[int], *, n_predict: int = 16, **more: Any) -> GenerateTask:
    request = Generation(
        n_predict=n_predict,
        stop=more.pop("stop", ()),
        sampling=more.pop("sampling", GREEDY),
        cache_prompt=more.pop("cache_prompt", True),
        **{name: more.pop(name) for name in ("shift", "n_keep", "n_discard") if name in more},
    )
    biases = Bias.of([(token, bias) for token, bias in request.sampling.logit_bias if isinstance(token, int)])
    values = {"seed": 1, "deadline": None, "biases": biases} | more
    return GenerateTask(SequenceKey(job_id, 0), tuple(prompt), request, **values)


class Recorded:
    """An engine between start and stop. `on_each` is called with every event, in the engine's thread."""

    def __init__(
        self,
        config: EngineConfig,
        on_each: Callable[[SequenceKey, EngineEvent], None] | None = None,
        *,
        open_context: Callable[[Model, ContextParams], Context] = Context.open,
    ) -> None:
        self.engine = Engine(config, self.post, open_context=open_context)
        self.on_each = on_each
        self._changed = threading.Condition()
        self._events: dict[str, list[EngineEvent]] = defaultdict(list)

    def __enter__(self) -> Self:
        self.engine.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.stop()

    def submit(self, *tasks: Task) -> None:
        for task in tasks:
            self.engine.submit(task)

    def run(self, *tasks: GenerateTask) -> list[Answer]:
        """Submit all at once and wait for all; a failure fails the test."""
        self.submit(*tasks)
        return [self.answer(task.key.job_id) for task in tasks]

    def answer(self, job_id: str) -> Answer:
        ending = self.ending(job_id)
        assert isinstance(ending, Answer), ending
        return ending

    def ending(self, job_id: str) -> Answer | Vector | Score | SlotReport | Failure:
        with self._changed:
            assert self._changed.wait_for(lambda: self.has_ended(job_id), PATIENCE_S), f"{job_id} did not end"
            last = self._events[job_id][-1]
        assert isinstance(last, Answer | Vector | Score | SlotReport | Failure)
        return last

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until something holds, looked at after every event."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_S)

    def events(self, job_id: str) -> list[EngineEvent]:
        with self._changed:
            return list(self._events[job_id])

    def tokens(self, job_id: str) -> list[Tokens]:
        return [event for event in self.events(job_id) if isinstance(event, Tokens)]

    def streamed(self, job_id: str) -> str:
        return "".join(event.text for event in self.tokens(job_id))

    def has_ended(self, job_id: str) -> bool:
        """For `wait_for`."""
        events = self._events[job_id]
        return bool(events) and isinstance(events[-1], Answer | Vector | Score | SlotReport | Failure)

    def post(self, events: Sequence[tuple[SequenceKey, EngineEvent]]) -> None:
        for key, event in events:
            if self.on_each is not None:
                self.on_each(key, event)
        with self._changed:
            for key, event in events:
                self._events[key.job_id].append(event)
            self._changed.notify_all()


def plain_greedy(
    path: Path, prompt: Sequence[int], n_predict: int, *, banned: Sequence[int] = (), **more: str
) -> list[int]:
    """The same continuation from a bare loop: one sequence, one decode a token, an argmax. `more` is `EXACT` for
    longer texts."""
    with Model.load(path) as model:
        params = ContextParams(
            n_ctx=2048, n_batch=2048, n_ubatch=512, n_seq_max=1, n_threads=1, n_threads_batch=1, **more
        )
        with Context.open(model, params) as context:
            tokens, position = np.array(prompt, dtype=np.int32), 0
            chosen: list[int] = []
            for _ in range(n_predict):
                outcome = context.decode([Piece(0, position, tokens, True)])
                assert isinstance(outcome, Decoded)
                outcome.logits[0, list(banned)] = -np.inf
                position += len(tokens)
                chosen.append(int(outcome.logits[0].argmax()))
                tokens = np.array(chosen[-1:], dtype=np.int32)
            return chosen
