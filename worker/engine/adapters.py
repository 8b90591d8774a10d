"""The LoRA adapters that a worker has loaded, and how much of each a request gets.

The scales of all of them together are a *set*: what is computed with one set is another model's with another, so that
no batch mixes sets and no cell is lent from one to another.

Knows nothing of llama.cpp, cells or batches.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from shared.errors import InvalidRequest
from shared.jobs import Adapter, no_adapter

Scales = tuple[float, ...]
"""A set: the scale of each adapter, by its id. Those of two requests are equal if llama.cpp computes the same."""


class AdapterFile(NamedTuple):
    path: Path
    scale: float = 1.0
    """Of requests that name none."""


class Defaults(NamedTuple):
    """What requests get that name no adapters."""

    scales: Scales
    set_at: float = 0.0
    """Unix seconds; 0: since the start."""


class Adapters:
    """Of one worker. For any thread.

    A request keeps the set that it was given when it was taken in: `set_defaults` is for those that come after.
    """

    def __init__(self, files: Sequence[AdapterFile] = ()) -> None:
        self.paths = tuple(file.path for file in files)
        self._lock = threading.Lock()
        self._defaults = Defaults(tuple(as_computed(file.scale) for file in files))
        self.on_change: Callable[[], object] = lambda: None
        """Called when the defaults have changed, in the thread that changed them."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def defaults(self) -> Defaults:
        return self._defaults

    def scales(self, named: Sequence[Adapter] | None) -> Scales:
        """The set of a request: 0 for adapters that it does not name, the defaults if it names not even that. Of an
        adapter that is named twice the last counts. InvalidRequest."""
        if named is None:
            return self._defaults.scales
        scales = [0.0] * len(self.paths)
        for adapter in named:
            if not 0 <= adapter.id < len(scales):
                raise InvalidRequest(f"Field 'lora': {no_adapter(adapter.id, len(scales))}", param="lora")
            scales[adapter.id] = as_computed(adapter.scale)
        return tuple(scales)

    def set_defaults(self, named: Sequence[Adapter], set_at: float = 0.0) -> Scales:
        """From now on requests that name no adapters get these, unless what they get was set later than `set_at`; 0:
        now. InvalidRequest, and then all stays as it is."""
        scales = self.scales(named)
        self._change(scales, set_at)
        return scales

    def adopt(self, defaults: Defaults) -> None:
        """Have the same defaults as another worker with the same adapters, unless ours were set later."""
        self._change(*defaults)

    def _change(self, scales: Scales, set_at: float) -> None:
        with self._lock:
            defaults = Defaults(scales, set_at or _later_than(self._defaults.set_at))
            if _rank(defaults) < _rank(self._defaults):
                return
            self._defaults = defaults
        self.on_change()


def _later_than(set_at: float) -> float:
    """Now; but what was taken over may come from a clock that is ahead of ours."""
    return max(time.time(), math.nextafter(set_at, math.inf))


def _rank(defaults: Defaults) -> tuple[float, Scales]:
    """Of two that were set at one time, all workers choose the same."""
    return defaults.set_at, defaults.scales


def as_computed(scale: float) -> float:
    """The number that llama.cpp computes with, of 32 bits. Zero has no sign."""
    return ctypes.c_float(scale).value + 0.0
