"""What a request adds to the logits of some tokens.

Summed once for all choices of a request, where nobody waits: tens of thousands take some ten milliseconds. Knows ids
and numbers; nothing of texts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

import numpy as np

from worker.engine.sampling.parameters import LARGEST
from worker.engine.sampling.pool import Floats, Ids


@dataclass(frozen=True, slots=True, eq=False)
class Bias:
    """Of one row; shared by sequences, and never written to."""

    ids: Ids
    """(n,), rising, each once."""
    values: Floats
    """(n,); -inf bans."""

    @classmethod
    def of(cls, biases: Collection[tuple[int, float | None]]) -> Self:
        """Several for one id add up; None bans, and what is no number adds nothing."""
        tokens = np.array([token for token, _ in biases], dtype=np.int64)
        numbers = [bias for _, bias in biases]
        values = np.clip(np.nan_to_num(np.array(numbers, dtype=np.float64)), -LARGEST, LARGEST)
        values[[bias is None for bias in numbers]] = -np.inf
        ids, places = np.unique(tokens, return_inverse=True)
        sums = np.zeros(len(ids))
        np.add.at(sums, places, values)
        return cls(ids, sums.astype(np.float32))

    def within(self, n_vocab: int) -> Self:
        """Without those outside a vocabulary."""
        first, end = np.searchsorted(self.ids, (0, n_vocab))
        return self if end - first == len(self.ids) else type(self)(self.ids[first:end], self.values[first:end])

    def banning(self, tokens: Collection[int]) -> Self:
        """With some tokens banned, whatever else was added to them."""
        if not tokens:
            return self
        banned = np.array(sorted(tokens), dtype=np.int64)
        places = np.searchsorted(self.ids, banned)
        is_new = places == np.searchsorted(self.ids, banned, side="right")
        ids = np.insert(self.ids, places[is_new], banned[is_new])
        values = np.insert(self.values, places[is_new], 0)
        values[np.searchsorted(ids, banned)] = -np.inf
        return type(self)(ids, values)


NO_BIAS = Bias.of(())
