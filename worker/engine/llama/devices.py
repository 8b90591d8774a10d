"""What llama.cpp can compute on here, and where it can keep tensors; by name, as people write them.

The package `llama_cpp` does not declare these functions, so they are declared here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple

from llama_cpp._ggml import libggml

_CPU_TYPE = 0


class Device(NamedTuple):
    name: str
    pointer: int
    is_cpu: bool
    buffer: str
    """Name of the buffers that it computes from."""
    buffer_type: int


def devices() -> list[Device]:
    """All that this build of llama.cpp finds here, the CPU with them."""
    return [_device(pointer) for pointer in _pointers()]


def free_bytes() -> int:
    """Free memory of everything but the CPU, together."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    n_bytes = 0
    for device in devices():
        if not device.is_cpu:
            _memory(device.pointer, ctypes.byref(free), ctypes.byref(total))
            n_bytes += free.value
    return n_bytes


def _pointers() -> Iterator[int]:
    for index in range(_count()):
        yield _get(index)


def _device(pointer: int) -> Device:
    buffer_type = _buffer_type(pointer)
    return Device(
        name=_name(pointer).decode("utf-8", "replace"),
        pointer=pointer,
        is_cpu=_type(pointer) == _CPU_TYPE,
        buffer=_buffer_name(buffer_type).decode("utf-8", "replace"),
        buffer_type=buffer_type,
    )


def _declared(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(libggml, name)
    function.restype, function.argtypes = result, list(arguments)
    return function


_count = _declared("ggml_backend_dev_count", ctypes.c_size_t)
_get = _declared("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
_name = _declared("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
_type = _declared("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
_buffer_type = _declared("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
_buffer_name = _declared("ggml_backend_buft_name", ctypes.c_char_p, ctypes.c_void_p)
_memory = _declared(
    "ggml_backend_dev_memory", None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
