"""How much memory processes have over time, and whether it grows. Linux only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
ALLOWED_MB = 6.0
ALLOWED_SHARE = 0.03
"""Of what a process has on average: what it may gain over a run beside the fixed part. Allocators settle slowly."""
LEAST_MINUTES = 0.5
"""Of samples: in less, memory tells of the warm-up alone."""
WARM_UP_SHARE = 0.3
"""Of a run whose samples do not count: caches fill, and records of ended jobs begin to expire."""


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MB


class Growth(NamedTuple):
    """Of one process: a straight line through its samples after the warm-up."""

    name: str
    mean_mb: float
    gained_mb: float
    """From the line's start to its end."""
    minutes: float

    @property
    def allowed_mb(self) -> float:
        return ALLOWED_MB + ALLOWED_SHARE * self.mean_mb

    @property
    def is_flat(self) -> bool:
        return self.minutes < LEAST_MINUTES or self.gained_mb <= self.allowed_mb


def growth_of(name: str, samples: Sequence[tuple[float, float]]) -> Growth:
    """`samples`: (seconds, MB)."""
    began, ended = samples[0][0], samples[-1][0]
    warm = [sample for sample in samples if sample[0] >= began + WARM_UP_SHARE * (ended - began)]
    times, sizes = np.array(warm).T
    slope = float(np.polyfit(times, sizes, 1)[0]) if len(warm) > 2 else 0.0
    span_s = float(times[-1] - times[0])
    return Growth(name, float(sizes.mean()), slope * span_s, span_s / 60)
