"""A load in llama.cpp's terms: its parameters with all that they point to, how far it is, and how it is given up."""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
from collections.abc import Iterator
from typing import Any

import llama_cpp
from llama_cpp._ggml import libggml

from shared.modelfile import LoadFailed
from shared.overrides import MetadataOverride
from worker.engine.llama.devices import devices
from worker.engine.options import LoadOptions


class LoadAbandoned(Exception):
    """Nobody wants the model any more."""


class LoadWatch:
    """What is seen of a load from outside. `progress` is written by the thread that loads, the rest by any."""

    def __init__(self) -> None:
        self.progress = 0.0
        """Of the weights, 0 to 1. Maps of files count at once: it is the first decode that reads those."""
        self.is_abandoned = False
        self.fault = ""
        """Why llama.cpp would have ended the process; then the load never ends, and only leaving helps."""

    def abandon(self) -> None:
        """Have the load end at its next tensor."""
        self.is_abandoned = True

    def heed(self, progress: float) -> bool:
        """Asked by the load before each tensor: whether it shall go on."""
        self.progress = progress
        return not self.is_abandoned


@contextlib.contextmanager
def surviving_aborts(watch: LoadWatch) -> Iterator[None]:
    """Within, an assertion of llama.cpp's that fails is the watch's `fault` instead of the end of the process: the
    thread that it fails in is kept for ever, since nothing may be returned to. For one load at a time."""

    def keep(message: bytes) -> None:
        watch.fault = _PLACE.sub("", message.decode("utf-8", "replace")).strip() or "no reason given"
        threading.Event().wait()

    callback = _ABORTED(keep)
    _set_abort_callback(callback)
    try:
        yield
    finally:
        _set_abort_callback(_ABORTED())


_PLACE = re.compile(r"^\S+:\d+: ")
"""A line of llama.cpp's code."""
_ABORTED = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_set_abort_callback = libggml.ggml_set_abort_callback
_set_abort_callback.argtypes, _set_abort_callback.restype = [_ABORTED], ctypes.c_void_p


class ModelParams:
    """`native` points into what the other fields hold: keep all of it until the load has ended."""

    def __init__(self, options: LoadOptions, watch: LoadWatch) -> None:
        """LoadFailed for names that are not there and lists that are too long."""
        self._devices = _device_list(options.devices)
        self._split = _split(options.tensor_split)
        self._placements = _placements(options.placements)
        self._overrides = _overrides(options.overrides)
        self._callback = llama_cpp.llama_progress_callback(lambda progress, _: watch.heed(progress))
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = options.n_gpu_layers
        params.split_mode = {"none": 0, "layer": 1, "row": 2, "tensor": 3}[options.split_mode]
        params.main_gpu = options.main_gpu
        params.load_mode = {"auto": -1, "none": 0, "mmap": 1, "mlock": 2, "mmap+mlock": 3, "dio": 4}[options.load_mode]
        params.check_tensors = options.checks_tensors
        params.progress_callback = self._callback
        if self._devices is not None:
            params.devices = ctypes.addressof(self._devices)
        if self._split is not None:
            params.tensor_split = self._split
        if self._placements is not None:
            params.tensor_buft_overrides = ctypes.addressof(self._placements)
        if self._overrides is not None:
            params.kv_overrides = self._overrides
        self.native = params


class _Placement(ctypes.Structure):
    """llama.cpp's `llama_model_tensor_buft_override`, which `llama_cpp` does not declare."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


def _device_list(names: tuple[str, ...]) -> Any:
    """Pointers with a NULL behind them; None for all."""
    if not names:
        return None
    there = {device.name: device.pointer for device in devices() if not device.is_cpu}
    wanted = () if names == ("none",) else names
    if unknown := [name for name in wanted if name not in there]:
        raise LoadFailed(f"--device: there is no {unknown[0]!r}; {_there_are(there, 'the CPU alone')}")
    return (ctypes.c_void_p * (len(wanted) + 1))(*(there[name] for name in wanted), None)


def _split(shares: tuple[float, ...]) -> Any:
    if not shares:
        return None
    n_most = llama_cpp.llama_max_devices()
    if len(shares) > n_most:
        raise LoadFailed(f"--tensor-split names {len(shares)} shares, and llama.cpp takes at most {n_most}")
    return (ctypes.c_float * n_most)(*shares)


def _placements(placements: tuple[tuple[str, str], ...]) -> Any:
    """Pairs with an empty one behind them; None for none."""
    if not placements:
        return None
    there = {device.buffer: device.buffer_type for device in devices()}
    if unknown := [buffer for _, buffer in placements if buffer not in there]:
        raise LoadFailed(f"--override-tensor: there is no buffer {unknown[0]!r}; {_there_are(there, 'none')}")
    pairs = [_Placement(pattern.encode(), there[buffer]) for pattern, buffer in placements]
    return (_Placement * (len(pairs) + 1))(*pairs, _Placement(None, None))


def _overrides(overrides: tuple[MetadataOverride, ...]) -> Any:
    """Entries with one of an empty key behind them; None for none."""
    if not overrides:
        return None
    entries = (llama_cpp.llama_model_kv_override * (len(overrides) + 1))()
    for entry, override in zip(entries, overrides, strict=False):
        entry.key = override.key.encode()
        match override.value:
            case bool(truth):
                entry.tag, entry.value.val_bool = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_BOOL, truth
            case int(number):
                entry.tag, entry.value.val_i64 = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT, number
            case float(number):
                entry.tag, entry.value.val_f64 = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_FLOAT, number
            case str(text):
                entry.tag, entry.value.val_str = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR, text.encode()
    return entries


def _there_are(names: dict[str, int], otherwise: str) -> str:
    return f"there is {', '.join(sorted(names)) or otherwise}"
