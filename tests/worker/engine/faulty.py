"""A context that fails on command; everything else about it is llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from worker.engine.llama import Context, ContextParams, Floats, Interrupt, LoadFailed, Model, Piece


class Fault(NamedTuple):
    """What a decode comes to instead. A code, or logits that are not there, or rows of them that are no numbers."""

    code: int = 0
    is_halfway: bool = False
    """Half of the batch is computed all the same, and is in the cache."""
    has_logits: bool = True
    spoils: frozenset[int] = frozenset()
    """Slots whose rows are not numbers."""


class Decode(NamedTuple):
    """One that is about to begin."""

    number: int
    """From 1 on."""
    n_openings: int
    """How often the context was opened until now."""
    slots: frozenset[int]
    """Whose tokens are in it."""
    n_tokens: int
    has_rows: bool
    """They are rows of an image."""


Rule = Callable[[Decode], Fault | None]


class Faults:
    """Opens contexts that follow a rule; `decodes` is what they were asked for."""

    def __init__(self, rule: Rule, *, n_good_openings: int = 1000) -> None:
        self.rule = rule
        self.n_good_openings = n_good_openings
        self.n_openings = 0
        self.decodes: list[Decode] = []

    def open(self, model: Model, params: ContextParams) -> Context:
        context = FaultyContext.open(model, params)
        context.faults = self
        return context


class FaultyContext(Context):
    faults: Faults | None = None

    def reopen(self) -> None:
        assert self.faults is not None
        self.faults.n_openings += 1
        if self.faults.n_openings > self.faults.n_good_openings:
            self.close()
            raise LoadFailed("there is no memory for it")
        faults, self.faults = self.faults, None  # it is warmed up in there
        try:
            super().reopen()
        finally:
            self.faults = faults

    def warm_up(self) -> None:
        faults, self.faults = self.faults, None
        super().warm_up()
        self.faults = faults

    def _compute(self, interrupt: Interrupt | None) -> int:
        self._fault = None
        if self.faults is None:
            return super()._compute(interrupt)
        n_tokens = self._batch.native.n_tokens
        slots = frozenset(self._batch.seq_id[:n_tokens].tolist())
        has_rows = not self._batch.native.token
        decode = Decode(len(self.faults.decodes) + 1, self.faults.n_openings, slots, n_tokens, has_rows)
        self.faults.decodes.append(decode)
        self._fault = fault = self.faults.rule(decode)
        if fault is None or fault.code == 0:
            return super()._compute(interrupt)
        if fault.is_halfway and n_tokens > 1:
            self._batch.native.n_tokens = n_tokens // 2
            super()._compute(interrupt)
        return fault.code

    def _logits(self, n_rows: int) -> Floats | None:
        logits = super()._logits(n_rows)
        if self._fault is None or logits is None:
            return logits
        slots = self._batch.seq_id[np.flatnonzero(self._batch.wants_logits[: self._batch.native.n_tokens])]
        logits[np.isin(slots, list(self._fault.spoils))] = np.nan
        return logits if self._fault.has_logits else None

    def _pooled_rows(self, pieces: Sequence[Piece]) -> list[Floats] | None:
        rows = super()._pooled_rows(pieces)
        if self._fault is None or rows is None:
            return rows
        spoils = self._fault.spoils
        return [each * np.nan if piece.seq_id in spoils else each for each, piece in zip(rows, pieces, strict=True)]

    _fault: Fault | None = None
