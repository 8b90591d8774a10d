"""What a cache has of one sequence, as llama.cpp writes it down and reads it again.

It holds no name of the model nor of the cache's types beyond their sizes: whoever keeps it must know where it belongs.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


NO_STATE: Bytes = np.empty(0, dtype=np.uint8)
"""Of a sequence that has nothing."""


class StateRefused(Exception):
    """llama.cpp does not take a state; the message says why in half a sentence. The sequence has nothing."""


def take(context: Any, seq_id: int) -> Bytes | None:
    """A copy; None when llama.cpp gives less than it promised."""
    n_bytes = llama_cpp.llama_state_seq_get_size_ext(context, seq_id, 0)
    state: Bytes = np.empty(n_bytes, dtype=np.uint8)
    n_given = llama_cpp.llama_state_seq_get_data_ext(context, _pointer(state), n_bytes, seq_id, 0)
    return state if 0 < n_given == n_bytes else None


def put(context: Any, seq_id: int, state: Bytes) -> bool:
    """Whether llama.cpp took all of it. If not, the sequence may have some of it."""
    n_taken: int = llama_cpp.llama_state_seq_set_data_ext(context, _pointer(state), len(state), seq_id, 0)
    return 0 < n_taken == len(state)


def _pointer(state: Bytes) -> Any:
    assert state.flags.c_contiguous
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
