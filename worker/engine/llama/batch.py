"""What one decode is made of, in arrays that llama.cpp reads in place."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from worker.engine.llama.backend import Ids


class Piece(NamedTuple):
    """Consecutive tokens of one sequence in a batch."""

    seq_id: int
    position: int
    """Of the first token."""
    tokens: Ids
    wants_logits: bool
    """Of the last token."""


class Batch:
    """A `llama_batch` whose arrays are ours, so that filling it is a handful of slice assignments."""

    def __init__(self, n_tokens: int) -> None:
        self.token = np.zeros(n_tokens, dtype=np.int32)
        self.position = np.zeros(n_tokens, dtype=np.int32)
        self.n_seq_id = np.ones(n_tokens, dtype=np.int32)
        self.seq_id = np.zeros(n_tokens, dtype=np.int32)
        self.wants_logits = np.zeros(n_tokens, dtype=np.int8)
        # llama.cpp wants an array of ids for each token; each of ours has one id and points into `seq_id`.
        self._seq_pointers = self.seq_id.ctypes.data + 4 * np.arange(n_tokens, dtype=np.uintp)
        self.native = llama_cpp.llama_batch()
        self.native.token = _pointer(self.token, ctypes.c_int32)
        self.native.embd = None
        self.native.pos = _pointer(self.position, ctypes.c_int32)
        self.native.n_seq_id = _pointer(self.n_seq_id, ctypes.c_int32)
        self.native.seq_id = _pointer(self._seq_pointers, ctypes.POINTER(ctypes.c_int32))
        self.native.logits = _pointer(self.wants_logits, ctypes.c_int8)
        self._counting = np.arange(n_tokens, dtype=np.int32)

    def fill(self, pieces: Sequence[Piece], *, all_outputs: bool = False) -> int:
        """Write the pieces one after the other; returns how many rows want logits."""
        sizes = np.array([len(tokens) for _, _, tokens, _ in pieces])
        ends = sizes.cumsum()
        n_tokens = int(ends[-1])
        offsets = np.array([position for _, position, _, _ in pieces]) - (ends - sizes)
        self.token[:n_tokens] = np.concatenate([tokens for _, _, tokens, _ in pieces])
        self.position[:n_tokens] = np.repeat(offsets, sizes) + self._counting[:n_tokens]
        self.seq_id[:n_tokens] = np.repeat([seq_id for seq_id, _, _, _ in pieces], sizes)
        self.wants_logits[:n_tokens] = all_outputs
        outputs = ends[[wants_logits for _, _, _, wants_logits in pieces]] - 1
        self.wants_logits[outputs] = 1
        self.native.n_tokens = n_tokens
        return len(outputs)


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
