"""What comes of a task before its first decode: a refusal, an answer at once, or a sequence in a slot.

Knows the model and the cells; nothing of lanes, of batches, or of who goes first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shared.errors import InvalidRequest, NotSupported, PromptTooLong, SlotstreamError
from shared.events import Answer, StopType, Timings
from shared.jobs import Lane
from worker.engine.cells import Cells, Ids
from worker.engine.constraint import Masks, Matcher
from worker.engine.grouping import UNGROUPED, Grouping
from worker.engine.llama import Model
from worker.engine.logprobs import TokenBytes
from worker.engine.overflow import FullContext, Shift
from worker.engine.sampling import Sampler, Setting
from worker.engine.scribe import answer
from worker.engine.sequence import Clock, Completed, Limits, Sequence
from worker.engine.task import GenerateTask
from worker.engine.transcript import Transcript
from worker.engine.vision.images import spans_of

NO_TEXT = "this worker generates no text: it only embeds or reranks"


class Launcher:
    """Of one model; `full_context` knows how long a sequence can get."""

    def __init__(
        self,
        model: Model,
        cells: Cells,
        masks: Masks,
        full_context: FullContext,
        *,
        can_generate: bool = True,
        grouping: Grouping = UNGROUPED,
        n_ubatch: int = 512,
    ) -> None:
        self._model = model
        self._cells = cells
        self._masks = masks
        self._full_context = full_context
        self._can_generate = can_generate
        self._grouping = grouping
        self._n_ubatch = n_ubatch
        self._setting = Setting(model.facts.n_vocab, full_context.n_ctx, model.eog, model.facts.newline)

    def check(self, task: GenerateTask) -> SlotstreamError | None:
        """What would harm others if it got further. Intake says the same, earlier and better."""
        n_prompt, n_ctx = len(task.prompt), self._full_context.n_ctx
        if not self._can_generate:
            return NotSupported(NO_TEXT)
        for param, ids in _ids(task):
            if not self._model.has_tokens(ids):
                return InvalidRequest(f"{param} has token ids outside the vocabulary", param=param)
        if len(task.scales) != len(self._model.adapters) or not all(map(math.isfinite, task.scales)):
            return InvalidRequest("the scales are not those of this worker's adapters", param="lora")
        if task.images and (error := self._check_images(task)):
            return error
        if n_prompt >= n_ctx:
            return PromptTooLong(
                f"the prompt has {n_prompt} tokens, which exceeds the available context size of {n_ctx} tokens",
                n_prompt_tokens=n_prompt,
                n_ctx=n_ctx,
            )
        return None

    def _check_images(self, task: GenerateTask) -> SlotstreamError | None:
        """What stands in a prompt besides tokens must be rows of its images, and must stay where it is."""
        if self._grouping.n > 1 or self._shift(task) is not None:
            return NotSupported("a prompt with images keeps its positions: it cannot be shifted or extended")
        end, n_rows = 0, 0
        for image in task.images:
            ids = task.prompt[image.start : image.end]
            if image.start < end or ids != (image.rows.id,) * len(image.rows):
                return InvalidRequest("an image is not where the prompt has it", param="prompt")
            if not image.rows.is_causal and len(image.rows) > self._n_ubatch:
                return InvalidRequest("an image has more rows than this worker computes at once", param="prompt")
            end, n_rows = image.end, n_rows + len(image.rows)
        if len(task.text) + n_rows != len(task.prompt):
            return InvalidRequest("prompt has token ids outside the vocabulary", param="prompt")
        return None

    def answer_at_once(self, task: GenerateTask) -> Answer | None:
        """The answer to a task that needs no decode: an empty prompt, or an earlier attempt that got to the end."""
        if task.prompt and not task.produced:
            return None
        transcript = self._transcript(task)
        ending = self._ending(task, transcript)
        if ending is None:
            return None
        transcript.flush()
        timings = Timings(queue_ms=task.queue_ms, cache_n=len(task.prompt), predicted_n=len(transcript.ids))
        return answer(task, transcript, ending, timings, self._model.detokenize, shift=self._shift(task))

    def known(self, task: GenerateTask) -> Ids:
        """The tokens with which a task begins: those of an earlier attempt too, less what it had shifted out."""
        known, shift = task.prompt + task.produced, self._shift(task)
        return np.array(known if shift is None else shift.left(known), dtype=np.int32)

    def launch(self, task: GenerateTask, known: Ids, since: float, slot: int) -> Sequence:
        """Give a slot to a task that waits since then (monotonic seconds), and of which these tokens are known."""
        shift = self._shift(task)
        tokens = np.zeros(self._full_context.n_ctx + 1, dtype=np.int32)  # one more is known than is in a full context
        tokens[: len(known)] = known
        resident = self._cells.place(
            tokens,
            len(known),
            may_reuse=task.request.cache_prompt,
            is_patient=task.lane is Lane.BULK,
            scales=task.scales,
            slot=slot,
            spans=spans_of(task.images),
        )
        matcher = Matcher(task.grammar, self._masks) if task.grammar is not None else None
        transcript = self._transcript(task)
        now = time.monotonic()
        return Sequence(
            task,
            resident,
            Sampler.of(task, self._setting, matcher),
            transcript,
            self._limits(task),
            Clock(queue_ms=task.queue_ms + (now - since) * 1e3, started=now),
            slot,
            waits_since=since,
            placed_at=now,
            grouping=self._grouping,
            shift=shift,
        )

    def _ending(self, task: GenerateTask, transcript: Transcript) -> Completed | None:
        """How a task is complete with what an earlier attempt produced; None while there is more to come."""
        if not task.prompt:
            return Completed(StopType.LIMIT)
        if transcript.stop_type is not None:
            return Completed(transcript.stop_type)
        n_decoded = len(task.produced)
        return self._limits(task).ending(task.produced[-1], n_decoded, len(task.prompt) + n_decoded)

    def _limits(self, task: GenerateTask) -> Limits:
        n_most = self._full_context.n_most(task.request, len(task.prompt))
        return Limits(n_most, task.request.n_predict, self._model.eog)

    def _shift(self, task: GenerateTask) -> Shift | None:
        return self._full_context.shift(task.request, len(task.prompt))

    def _transcript(self, task: GenerateTask) -> Transcript:
        """As it stands after what an earlier attempt produced."""
        transcript = Transcript(task.request.stop, self._token_bytes(task), task.request.n_indent)
        transcript.replay(task.produced, task.logprobs)
        return transcript

    def _token_bytes(self, task: GenerateTask) -> TokenBytes:
        shown, token_bytes = task.shown, self._model.token_bytes
        return (lambda token: token_bytes(token, special=token in shown)) if shown else token_bytes


def _ids(task: GenerateTask) -> Iterator[tuple[str, tuple[int, ...]]]:
    """All token ids in a task, by the field that they come from; of those that rise, the ends say it for all."""
    yield "prompt", (*task.text, *task.produced)
    yield "penalty_prompt", task.penalized or ()
    yield "dry_sequence_breakers", _ends(task.breakers.ids)
    yield "logit_bias", _ends(task.biases.ids)


def _ends(rising: NDArray[np.int64]) -> tuple[int, ...]:
    return (*rising[:1].tolist(), *rising[-1:].tolist())
