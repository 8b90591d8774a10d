"""Brings vectors to the length that was asked for. Pure."""

from __future__ import annotations

import numpy as np

from worker.engine.llama import Floats

NOT_AT_ALL, GREATEST = -1, 0
INT16 = 32760.0
"""What the greatest value becomes, so that all fit into 16 bits."""


def normalized(vector: Floats, norm: int) -> Floats:
    """The same direction, divided as `Embedding.norm` says; zero stays zero. Shape (n,) in and out."""
    greatest = float(np.abs(vector).max())
    if norm == NOT_AT_ALL or greatest == 0:
        return vector
    scaled = vector.astype(np.float64) / greatest  # or the powers of a high norm would all be nothing
    if norm == GREATEST:
        return (scaled * INT16).astype(np.float32)
    length = float((np.abs(scaled) ** norm).sum()) ** (1 / norm)
    result: Floats = (scaled / length).astype(np.float32)
    return result
