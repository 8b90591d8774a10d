"""Embeddings and scores: a context of their own beside generation, opened when the first input comes.

For the decode thread. Who is computed when is the schedule's matter; here it is what goes into one decode, and what
comes of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shared.errors import EngineFailed, InvalidRequest, NotSupported, SlotstreamError
from shared.events import Failure, Score, Vector
from shared.jobs import Lane
from worker.closing import Closing
from worker.engine.config import EngineConfig
from worker.engine.embedding.inputs import InputRules
from worker.engine.embedding.norm import normalized
from worker.engine.embedding.togetherness import changes_nothing
from worker.engine.lanes import Lanes
from worker.engine.llama import (
    Context,
    ContextParams,
    DecodeFailed,
    Floats,
    LoadFailed,
    Model,
    OpenContext,
    Piece,
)
from worker.engine.task import EmbedTask

log = logging.getLogger(__name__)

MOST_TOGETHER = 31
"""Inputs of one decode."""
TOKENS_TOGETHER = 128
"""Of such a decode: attention goes over all of its tokens, whoever's they are, which costs more and more."""

LONG = 0
"""Id of the sequence of an input that comes in parts. Others have the ids behind it."""

Result = Vector | Score | Failure


@dataclass(slots=True)
class _Parts:
    """An input that is longer than a decode: what of it is in the cache."""

    task: EmbedTask
    n_done: int = 0
    has_failed: bool = False


class Embedder(Closing):
    """Turns inputs into vectors or scores. A result does not depend on its neighbours: inputs share a decode only where
    that makes no difference, or where the settings say that it may."""

    def __init__(
        self, model: Model, config: EngineConfig, rules: InputRules, open_context: OpenContext = Context.open
    ) -> None:
        self.rules = rules
        self._model = model
        self._config = config
        self._open_context = open_context
        self._context: Context | None = None
        self._is_lost = False
        """The context was closed and could not be had again."""
        self._shares = False
        self._parts: _Parts | None = None

    def close(self) -> None:
        if self._context is not None:
            self._context.close()

    def check(self, task: EmbedTask) -> SlotstreamError | None:
        """Why an input cannot be embedded, if so. Intake says the same, earlier and better."""
        if fault := self.rules.fault(len(task.tokens)):
            return InvalidRequest(f"the input {fault}", param="input")
        if not self._model.has_tokens(task.tokens):
            return InvalidRequest("the input contains invalid tokens", param="input")
        return None

    def open(self) -> Context:
        """The context, the same one from the first call on. LoadFailed; then it may be tried again."""
        if self._context is None:
            context = self._open_context(self._model, self._params())
            if self.rules.comes_in_parts and not context.can_go_on:
                context.close()
                raise LoadFailed("its texts cannot be computed in parts, and --ctx-size leaves more to a slot than -ub")
            if self.rules.reranks and not self._model.facts.has_classifier:
                log.warning("the model does not say that it was made to rerank: its scores may mean nothing")
            self._context = context
            self._shares = self._is_to_share or self._can_share(context)
        elif self._is_lost:
            self._context.reopen()
            self._is_lost = False
        return self._context

    def _params(self) -> ContextParams:
        """With cells for an input in parts and those that go between."""
        n_cells = self.rules.n_most if self.rules.comes_in_parts else 0
        n_together = MOST_TOGETHER if self._is_to_share or self._might_share else 1
        params = ContextParams.to_embed(self._config, self.rules.pooling, n_cells=n_cells, n_ids=1 + n_together)
        if self._might_share and params.flash_attention == "auto":
            # Both round to 16 bits, and win nothing on short texts.
            return replace(params, flash_attention="off", cache_type_k="f32", cache_type_v="f32")
        return params

    def gather(self, waiting: Lanes[EmbedTask], lane: Lane, n_tokens: int) -> list[EmbedTask]:
        """Who goes into the next decode, of the next in a lane: about `n_tokens` of them, but one at least. An input in
        parts is brought to its end before another such one begins, whosever turn it is; others go between its parts."""
        first = waiting.first(lane)
        if self._comes_in_parts(first):
            return [self._parts.task if self._parts else first]
        together = [first]
        n_left = min(n_tokens, self._n_together) - len(first.tokens)
        for task in waiting.ahead(lane, MOST_TOGETHER if self._shares else 1):
            if task is first:
                continue
            n_left -= len(task.tokens)
            if n_left < 0 or task.scales != first.scales:
                break
            together.append(task)
        return together

    def embed(self, tasks: Sequence[EmbedTask]) -> list[tuple[EmbedTask, Result]]:
        """One decode of what `gather` gave: those that are done with it. None is, where an input has more parts."""
        try:
            context = self.open()
        except LoadFailed as error:
            return [(task, self._without_context(error)) for task in tasks]
        context.adapt(tasks[0].scales)
        if self._comes_in_parts(tasks[0]):
            result = self._next_part(context, tasks[0])
            return [] if result is None else [(tasks[0], result)]
        rows = self._compute(context, tasks)
        if isinstance(rows, DecodeFailed) and len(tasks) == 1:
            rows = self._compute_anew(context, tasks)
        if len(tasks) > 1 and (isinstance(rows, DecodeFailed) or not all(np.isfinite(each).all() for each in rows)):
            return [done for task in tasks for done in self.embed([task])]  # only who is at fault fails
        if isinstance(rows, DecodeFailed):
            return [(task, Failure.of(EngineFailed(rows.reason))) for task in tasks]
        return [(task, self._result(task, each)) for task, each in zip(tasks, rows, strict=True)]

    def _without_context(self, error: LoadFailed) -> Failure:
        if self._context is None:
            return Failure.of(NotSupported(f"this model gives no embeddings: {error}"))
        return Failure.of(EngineFailed(str(error)))

    def forget(self, is_going: Callable[[EmbedTask], bool]) -> None:
        """Nobody waits any more for those."""
        if self._parts is not None and is_going(self._parts.task):
            self._end_parts()

    @property
    def _is_to_share(self) -> bool:
        return self._config.embedding_batch == "on"

    @property
    def _might_share(self) -> bool:
        """Where it is worth trying: other weights round what they are multiplied with."""
        return self._config.embedding_batch == "auto" and self._model.facts.quantization == "F32"

    def _can_share(self, context: Context) -> bool:
        return self._might_share and changes_nothing(context, self._model.facts.n_vocab, self.rules.n_at_once)

    @property
    def _n_together(self) -> int:
        """Tokens of a decode that is shared."""
        return self.rules.n_at_once if self._is_to_share else min(TOKENS_TOGETHER, self.rules.n_at_once)

    def _comes_in_parts(self, task: EmbedTask) -> bool:
        return len(task.tokens) > self.rules.n_at_once

    def _compute(self, context: Context, tasks: Sequence[EmbedTask]) -> list[Floats] | DecodeFailed:
        """Each from its beginning. Nothing of them stays in the cache."""
        pieces = [
            Piece(seq_id, 0, np.array(task.tokens, dtype=np.int32), False)
            for seq_id, task in enumerate(tasks, LONG + 1)
        ]
        rows = context.embed(pieces)
        for piece in pieces:
            context.truncate(piece.seq_id, 0)
        return rows

    def _compute_anew(self, context: Context, tasks: Sequence[EmbedTask]) -> list[Floats] | DecodeFailed:
        """Once more, in a new context: whether the input was at fault or the context is not known. All that is lost are
        the parts of another."""
        if (failed := self._reopen(context)) is not None:
            return failed
        return self._compute(context, tasks)

    def _reopen(self, context: Context) -> DecodeFailed | None:
        if self._parts is not None:
            self._parts.n_done = 0
        try:
            context.reopen()
        except LoadFailed as error:
            self._is_lost = True
            return DecodeFailed(str(error))
        return None

    def _next_part(self, context: Context, task: EmbedTask) -> Result | None:
        """Go on with an input by as much as fits into a decode; the result, if that was the last of it."""
        parts = self._parts = self._parts or _Parts(task)
        tokens = np.array(task.tokens[parts.n_done : parts.n_done + self.rules.n_at_once], dtype=np.int32)
        rows = context.embed([Piece(LONG, parts.n_done, tokens, False)])
        if isinstance(rows, DecodeFailed):
            return self._retry_parts(context, parts, rows)
        parts.n_done += len(tokens)
        if parts.n_done < len(task.tokens):
            return None
        self._end_parts()
        return self._result(task, rows[0])

    def _retry_parts(self, context: Context, parts: _Parts, failed: DecodeFailed) -> Failure | None:
        """From the beginning in a new context, once."""
        if not parts.has_failed:
            parts.has_failed = True
            if (hopeless := self._reopen(context)) is None:
                return None
            failed = hopeless
        self._end_parts()
        return Failure.of(EngineFailed(failed.reason))

    def _end_parts(self) -> None:
        self._parts = None
        if self._context is not None and not self._is_lost:
            self._context.truncate(LONG, 0)

    def _result(self, task: EmbedTask, rows: Floats) -> Result:
        index, n_tokens = task.key.index, len(task.tokens)
        if not np.isfinite(rows).all():
            return Failure.of(EngineFailed("the embedding has values that are not numbers"))
        match self.rules.pooling:
            case "rank":
                return Score(index=index, prompt_tokens=n_tokens, score=float(rows[0, 0]))
            case "none":
                return Vector.of(index, rows, n_tokens)
        return Vector.of(index, normalized(rows[0], task.norm), n_tokens)
