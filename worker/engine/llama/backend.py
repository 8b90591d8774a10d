"""llama.cpp in this process: started with the first model that is loaded, ended with the last, and what it logs.

Knows nothing of models or contexts.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
from collections import deque

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from worker.engine.options import Numa

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]

_LEVELS = {3: logging.WARNING, 4: logging.ERROR}
_EXPECTED = (
    # Every model gets this warning that was not made for embeddings: a pooling is chosen for it on purpose.
    "default pooling_type is",
    # What is said of an interrupted decode, layer by layer: 1 is the status of an aborted graph.
    "graph_compute_async failed with error 1",
    "failed to compute graph, compute status: 1",
    "removing memory module entries",
    "failed to decode, ret = 2",
)
_CONSEQUENCES = ("failed to load model", "failed to initialize the context")
_FUNCTION = re.compile(r"^(?:\w+: )+(?:Warning: )?")
"""What llama.cpp puts before what it says: where in its code it says so."""
_last_errors: deque[str] = deque(maxlen=8)
_last_warnings: deque[str] = deque(maxlen=32)
_last_level = 0


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def on_log(level: int, text: bytes, _user: ctypes.c_void_p) -> None:
    """Warnings and errors go to our log; level 5 continues the line before."""
    global _last_level  # noqa: PLW0603 - llama.cpp knows one log for the whole process
    level = _last_level if level == 5 else level
    _last_level = level
    message = text.decode("utf-8", "replace").strip()
    if level not in _LEVELS or not message or any(each in message for each in _EXPECTED):
        return
    (_last_errors if level == 4 else _last_warnings).append(message)
    log.log(_LEVELS[level], "llama.cpp: %s", message)


_backend_lock = threading.Lock()
_backend_users = 0


def acquire(numa: Numa | None = None) -> None:
    """`numa` is heeded by the first who comes: it is the process's."""
    global _backend_users  # noqa: PLW0603 - one backend per process, counted
    with _backend_lock:
        if _backend_users == 0:
            llama_cpp.llama_log_set(on_log, ctypes.c_void_p(0))
            llama_cpp.llama_backend_init()
            if numa is not None:
                llama_cpp.llama_numa_init({"distribute": 1, "isolate": 2, "numactl": 3}[numa])
        _backend_users += 1


def release() -> None:
    global _backend_users  # noqa: PLW0603 - one backend per process, counted
    with _backend_lock:
        _backend_users -= 1
        if _backend_users == 0:
            llama_cpp.llama_backend_free()


def forget_errors() -> None:
    """What is said from now on is about something else."""
    _last_errors.clear()
    _last_warnings.clear()


def because() -> str:
    """The end of a sentence: the first reason that llama.cpp named, if any; what it says later is what came of it."""
    telling = [line for line in _last_errors if not any(each in line for each in _CONSEQUENCES)]
    reasons = telling or list(_last_errors)
    if not reasons:
        return ""
    reason = reasons[0].rsplit("error loading model: ", 1)[-1]
    return ": " + _FUNCTION.sub("", reason).rstrip(".")


def errors() -> tuple[str, ...]:
    """What llama.cpp said went wrong since `forget_errors`."""
    return tuple(_last_errors)


def warned_of(text: str) -> str | None:
    """What llama.cpp warned of since `forget_errors` with these words in it."""
    return next((_FUNCTION.sub("", line) for line in _last_warnings if text in line), None)


def max_sequences() -> int:
    """Ids that a context can have at most."""
    return int(llama_cpp.llama_max_parallel_sequences())
