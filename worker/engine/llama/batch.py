"""What one decode is made of, in arrays that llama.cpp reads in place."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from worker.engine.llama.backend import Floats, Ids

N_DIMENSIONS = 4
"""Of a position in M-RoPE."""


class Rows(NamedTuple):
    """What stands in place of tokens: rows that a projector made of an image."""

    values: Floats
    """(rows, width of the model's input)."""
    places: Ids | None = None
    """(4, rows): positions in M-RoPE; None where they count up."""
    is_causal: bool = True
    """Whether each sees only those before it."""


class Piece(NamedTuple):
    """Consecutive tokens of one sequence in a batch."""

    seq_id: int
    position: int
    """Of the first token."""
    tokens: Ids
    wants_logits: bool
    """Of the last token."""
    rows: Rows | None = None
    """Set: these are computed instead, and are a batch of their own."""


class Batch:
    """A `llama_batch` whose arrays are ours, so that filling it is a handful of slice assignments."""

    def __init__(self, n_tokens: int) -> None:
        self.token = np.zeros(n_tokens, dtype=np.int32)
        self.position = np.zeros(N_DIMENSIONS * n_tokens, dtype=np.int32)
        self.n_seq_id = np.ones(n_tokens, dtype=np.int32)
        self.seq_id = np.zeros(n_tokens, dtype=np.int32)
        self.wants_logits = np.zeros(n_tokens, dtype=np.int8)
        # llama.cpp wants an array of ids for each token; each of ours has one id and points into `seq_id`.
        self._seq_pointers = self.seq_id.ctypes.data + 4 * np.arange(n_tokens, dtype=np.uintp)
        self.native = llama_cpp.llama_batch()
        self._rows: Floats | None = None
        self._choose(None)
        self.native.pos = _pointer(self.position, ctypes.c_int32)
        self.native.n_seq_id = _pointer(self.n_seq_id, ctypes.c_int32)
        self.native.seq_id = _pointer(self._seq_pointers, ctypes.POINTER(ctypes.c_int32))
        self.native.logits = _pointer(self.wants_logits, ctypes.c_int8)
        self._counting = np.arange(n_tokens, dtype=np.int32)

    def fill(self, pieces: Sequence[Piece], *, all_outputs: bool = False) -> int:
        """Write the pieces one after the other; returns how many rows want logits."""
        sizes = np.array([len(piece.tokens) for piece in pieces])
        ends = sizes.cumsum()
        n_tokens = int(ends[-1])
        offsets = np.array([piece.position for piece in pieces]) - (ends - sizes)
        self._choose(None)
        self.token[:n_tokens] = np.concatenate([piece.tokens for piece in pieces])
        self.position[:n_tokens] = np.repeat(offsets, sizes) + self._counting[:n_tokens]
        self.seq_id[:n_tokens] = np.repeat([piece.seq_id for piece in pieces], sizes)
        self.wants_logits[:n_tokens] = all_outputs
        outputs = ends[[piece.wants_logits for piece in pieces]] - 1
        self.wants_logits[outputs] = 1
        self.native.n_tokens = n_tokens
        return len(outputs)

    def fill_rows(self, piece: Piece, rows: Rows) -> int:
        """The same with the rows of one piece instead of its tokens."""
        n_rows = len(rows.values)
        self._choose(rows.values)
        if rows.places is None:
            self.position[:n_rows] = piece.position + self._counting[:n_rows]
        else:
            self.position[: rows.places.size] = rows.places.ravel()
        self.seq_id[:n_rows] = piece.seq_id
        self.wants_logits[:n_rows] = 0
        self.wants_logits[n_rows - 1] = piece.wants_logits
        self.native.n_tokens = n_rows
        return int(piece.wants_logits)

    def _choose(self, rows: Floats | None) -> None:
        """What is computed, tokens or these rows: a batch has the one or the other."""
        self._rows = None if rows is None else np.ascontiguousarray(rows, dtype=np.float32)  # kept: it is read in place
        self.native.token = _pointer(self.token, ctypes.c_int32) if rows is None else None
        self.native.embd = None if self._rows is None else _pointer(self._rows, ctypes.c_float)


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
