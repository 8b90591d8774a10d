"""How likely the chosen token was, and which others were: before the chain or behind it.

Knows logits; nothing of how a token was chosen.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from worker.engine.sampling.pool import Floats, Ids, likeliest

LEAST_LOGPROB = -9999.0
"""Stands for the logarithm of zero, which JSON cannot say."""


class Scores(NamedTuple):
    """Natural logarithms, finite. Those of the likeliest tokens come likeliest first; the chosen one need not be
    among them."""

    logprob: float
    ids: Ids
    logprobs: Floats


class Odds(NamedTuple):
    """Probabilities of all tokens of one row."""

    row: Floats
    """(n_vocab,), logits; must not change any more."""
    log_mass: float
    """Logarithm of the sum of their exponentials."""
    ids: Ids
    """Of the likeliest."""

    @classmethod
    def of(cls, row: Floats, n_likeliest: int) -> Self:
        largest = row.max()
        log_mass = float(largest) + float(np.log(np.exp(row - largest).sum(dtype=np.float64)))
        return cls(row, log_mass, likeliest(row, n_likeliest).ids if n_likeliest else _NONE)

    def scores(self, token: int) -> Scores:
        ids = np.append(self.ids, token)
        logprobs = np.maximum(self.row[ids].astype(np.float64) - self.log_mass, LEAST_LOGPROB).astype(np.float32)
        return Scores(float(logprobs[-1]), self.ids, logprobs[:-1])


def scores_among(ids: Ids, logits: Floats, column: int, n_likeliest: int) -> Scores:
    """Of candidates (n,), likeliest first, of which the one in a column was chosen. What cannot be is left out."""
    n_left = int((logits > -np.inf).sum())
    behind = (logits[:n_left] - logits[0]).astype(np.float64)
    logprobs = (behind - np.log(np.exp(behind).sum())).astype(np.float32)
    return Scores(float(logprobs[column]), ids[:n_left][:n_likeliest], logprobs[:n_likeliest])


_NONE = np.zeros(0, dtype=np.int64)
