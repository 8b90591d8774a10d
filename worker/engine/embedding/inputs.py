"""What a worker makes of an input that it does not generate from: a vector, a vector for each token, or a score; and
how long it may be.

Knows a model's facts and the settings; nothing of contexts or tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from worker.engine.config import EngineConfig, Pooling
from worker.engine.llama import ModelFacts


@dataclass(frozen=True, slots=True)
class InputRules:
    pooling: Pooling = "mean"
    n_most: int = 512
    """Tokens of one input."""
    limit: str = "n_ubatch"
    """What says so."""
    n_at_once: int = 512
    """Tokens that are computed together: a longer input comes in parts, where it may be longer."""

    @classmethod
    def of(cls, facts: ModelFacts, config: EngineConfig, n_ctx_slot: int) -> Self:
        """What is pooled from all tokens must be computed in one piece, and a model may have no positions beyond its
        training; the last token alone also knows what was computed before it."""
        pooling = config.pooling or _pooling_of(facts)
        n_at_once, limit = min((config.n_ubatch, "n_ubatch"), (facts.n_ctx_train, "n_ctx_train"))
        if facts.is_causal and pooling in ("last", "rank") and n_ctx_slot > n_at_once:
            return cls(pooling, n_ctx_slot, "n_ctx", n_at_once)
        return cls(pooling, n_at_once, limit, n_at_once)

    @property
    def reranks(self) -> bool:
        return self.pooling == "rank"

    @property
    def comes_in_parts(self) -> bool:
        """Whether an input may be longer than what is computed at once."""
        return self.n_most > self.n_at_once

    def fault(self, n_tokens: int) -> str | None:
        """Why an input of that length cannot be computed, as the end of a sentence about it."""
        if n_tokens == 0:
            return "has no tokens"
        if n_tokens > self.n_most:
            return (
                f"is too large to process: it has {n_tokens} tokens, and this worker takes {self.n_most} ({self.limit})"
            )
        return None


def _pooling_of(facts: ModelFacts) -> Pooling:
    """How a model wants its inputs pooled; mean when it names nothing that gives one vector."""
    named = facts.metadata.get(f"{facts.architecture}.pooling_type", "")
    pooling: dict[str, Pooling] = {"1": "mean", "2": "cls", "3": "last", "4": "rank"}
    return pooling.get(named, "mean")
