"""Ends a decode from another thread."""

from __future__ import annotations

import ctypes

import llama_cpp


class Interrupt:
    """Ends a decode halfway. `set` and `clear` are for any thread. CPU only: elsewhere a decode runs to its end.

    llama.cpp asks before each of a decode's hundreds of operations, through a C function. One of Python's would take
    the GIL each time, so it gets libc's `atoi` and the address of "0" or "1": the answer is an int, whose lowest byte
    is the bool that is read, on x86-64 as on ARM.
    """

    ASK = ctypes.cast(ctypes.CDLL(None).atoi, llama_cpp.ggml_abort_callback)
    ASK_NOTHING = llama_cpp.ggml_abort_callback()

    def __init__(self) -> None:
        self._digits = ctypes.create_string_buffer(b"0")

    @property
    def address(self) -> int:
        return ctypes.addressof(self._digits)

    def set(self) -> None:
        self._digits[0] = b"1"

    def clear(self) -> None:
        self._digits[0] = b"0"
