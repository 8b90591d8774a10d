"""What is done about decodes that fail: what an inquiry decides, carried out on the context and its cells.

For the decode thread. Knows nothing of batches, of text or of who gets a slot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from worker.engine.cells import Cells
from worker.engine.faults import ContextBroken, GiveUp, Guilty, Inquiry, Rebuild, Trial
from worker.engine.llama import Context, LoadFailed
from worker.engine.plan import Plan
from worker.engine.sequence import Sequence

log = logging.getLogger(__name__)

MOST_REOPENINGS = 3
"""Of a context that does not compute; then the process ends, and others take up its jobs."""
REOPENING_PAUSE_S = 0.1

Fail = Callable[[Sequence, str], None]
"""Ends a sequence with a failure of the engine, for that reason."""


class Recovery:
    """Told how decodes went; says whom to try next while somebody is under suspicion."""

    def __init__(self, context: Context, cells: Cells, fail: Fail) -> None:
        self._context = context
        self._cells = cells
        self._fail = fail
        self._inquiry: Inquiry[Sequence] = Inquiry()

    def failed(self, plan: Plan[Sequence], reason: str) -> None:
        """One sequence is at fault, not all; or nobody is, and it will go well the next time."""
        log.warning("a decode of %d sequences failed: %s", plan.n_sequences, reason)
        self._inquiry.failed((sequence for sequence, _ in plan.shares), plan.n_prefill, reason)
        self.restore(plan)
        self._cells.unfollow()

    def restore(self, plan: Plan[Sequence]) -> None:
        """Take what a decode left halfway out of the cache."""
        for sequence, _ in plan.shares:
            self._cells.restore(sequence.resident)

    def passed(self, plan: Plan[Sequence]) -> None:
        """It went well, and what it computed has been committed."""
        self._inquiry.passed(sequence for sequence, _ in plan.shares)

    def spoiled(self, sequences: Iterable[Sequence], *, has_sound: bool) -> None:
        """The logits of these are not numbers; `has_sound`: others' of the same decode are."""
        self._carry_out(self._inquiry.spoiled(sequences, "the model's logits are not numbers", has_sound=has_sound))

    def next_trial(self, running: Iterable[Sequence]) -> Trial[Sequence] | None:
        """Whom to decode next, if anybody is under suspicion; verdicts are carried out. ContextBroken when nothing
        helps."""
        step = self._inquiry.proceed(running)
        if step is None or isinstance(step, Trial):
            return step
        self._carry_out(step)
        return None

    def _carry_out(self, verdict: Guilty[Sequence] | Rebuild | GiveUp) -> None:
        match verdict:
            case Guilty(sequences, reason):
                for sequence in sequences:
                    self._fail(sequence, reason)
                    self._cells.forget(sequence.resident)
            case Rebuild(reason):
                log.warning("the context is made anew, since nobody can be computed: %s", reason)
                self._rebuild()
            case GiveUp(reason):
                raise ContextBroken(f"a new context does not help: {reason}")

    def _rebuild(self) -> None:
        """Lose all cells and go on: everybody's tokens are known, and are computed again."""
        for attempt in range(1, MOST_REOPENINGS + 1):
            try:
                self._context.reopen()
                break
            except LoadFailed as error:
                if attempt == MOST_REOPENINGS:
                    raise ContextBroken(f"there is no new context to be had: {error}") from None
                time.sleep(REOPENING_PAUSE_S * attempt)
        self._cells.lose_all()
