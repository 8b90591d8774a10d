"""What the engine looks like from outside at one moment. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from shared.jobs import Generation
from shared.work import Work
from worker.engine.plan import Plan
from worker.engine.sequence import Sequence
from worker.engine.task import SequenceKey


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """One slot. Counts of an idle slot are those of the sequence that was there last."""

    id: int
    is_processing: bool
    n_ctx: int
    job_id: str | None = None
    n_prompt_tokens: int = 0
    n_prompt_tokens_processed: int = 0
    n_prompt_tokens_cache: int = 0
    n_decoded: int = 0
    n_remain: int = -1
    has_new_line: bool = False
    request: Generation | None = None
    """Of that sequence, as it was asked."""

    @classmethod
    def of(cls, slot: int, sequence: Sequence | None, n_ctx: int) -> SlotSnapshot:
        """`sequence` is who is in it or was there last. From any thread: counts may be a step apart."""
        if sequence is None:
            return cls(id=slot, is_processing=False, n_ctx=n_ctx)
        is_processing = sequence.has_slot and sequence.slot == slot
        return cls(
            id=slot,
            is_processing=is_processing,
            n_ctx=n_ctx,
            job_id=sequence.task.key.job_id if is_processing else None,
            n_prompt_tokens=sequence.n_prompt,
            n_prompt_tokens_processed=max(sequence.n_told, sequence.n_prompt_cached),
            n_prompt_tokens_cache=sequence.n_reused,
            n_decoded=sequence.n_decoded if is_processing else 0,
            n_remain=sequence.n_remain if is_processing else -1,
            has_new_line=sequence.transcript.has_new_line,
            request=sequence.task.request,
        )


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """What one decode was made of."""

    step: int = 0
    generating: tuple[int, ...] = ()
    """Slots that had one row each."""
    prefilling: tuple[tuple[int, int], ...] = ()
    """(slot, prompt tokens)."""
    n_embedding_inputs: int = 0

    @classmethod
    def of(cls, plan: Plan[Sequence], step: int) -> BatchSnapshot:
        generating = tuple(sequence.slot for sequence in plan.generating)
        return cls(step, generating, tuple((sequence.slot, n_tokens) for sequence, n_tokens in plan.prefill))

    @property
    def n_rows(self) -> int:
        return len(self.generating) + sum(n_tokens for _, n_tokens in self.prefilling)

    @property
    def slots(self) -> tuple[int, ...]:
        return (*self.generating, *(slot for slot, _ in self.prefilling))


class Stuck(NamedTuple):
    """A sequence of bulk that has no slot, be it parked or not started yet, and since when (monotonic seconds)."""

    key: SequenceKey
    since: float


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    slots: tuple[SlotSnapshot, ...] = ()
    n_waiting: int = 0
    """Tasks that are in the engine and have no slot yet, embeddings included."""
    n_parked: int = 0
    """Sequences that gave their slot to a person, or their cells to others, and wait for another."""
    n_parked_for_any: int = 0
    """Of those, who would go on in any slot."""
    stuck: tuple[Stuck, ...] = ()
    """Of those two, all of bulk, embeddings left out."""
    batch: BatchSnapshot = BatchSnapshot()
    """The last decode."""
    steps: int = 0
    """Decodes so far; with `progress_at` what a watchdog looks at."""
    progress_at: float = 0.0
    """`time.monotonic()` when the loop last came round."""
    is_busy: bool = False
    """Whether it works, or should: only then does an old `progress_at` mean that it hangs."""
    is_alive: bool = False
    """Whether the decode thread runs."""
    gap_ms: float = 0.0
    """Our own time between two decodes: moving average; idle waits are left out."""
    gap_ms_p50: float = 0.0
    """The same: median of the last 512."""
    decode_ms: float = 0.0
    """Time inside llama.cpp per decode: moving average."""
    tokens_per_second: float = 0.0
    """Tokens generated per second by all slots together, over the last seconds."""
    work: Work = field(default_factory=Work)
    """All that was done since the start."""
    n_cells: int = 0
    """Of the cache."""
    n_cells_used: int = 0
    """Also by those that are idle: what they hold may be reused."""
