"""How many threads a decode gets, and how they wait for each other. Knows nothing of llama.cpp.

Stands outside `worker.engine`, whose import loads the native library: that reads its variables once, then.

Why all CPUs and a passive wait. A decode is hundreds of short operations with a barrier after each, where OpenMP's
threads spin by default. On a machine of its own that is the quickest; but when anything else takes a CPU for a
moment, the others spin until the one that lost it is back. Seconds for the same 8 prompts of 64 tokens, 24 more each,
on 2 CPUs (SmolLM2-135M Q4_1, the plain loop of `bench/raw.py`; other work came and went, so two runs each):

    threads, wait                  idle          one CPU busy
    2, default                     4.2, 19.6     31.0, 29.7
    2, GOMP_SPINCOUNT=10000        5.6, 14.1     19.0, 15.1
    2, passive                     5.4,  5.7      7.6, 10.0
    1                              8.1,  9.4     12.2,  8.2

An API, a Redis server and this worker's own event loop are such others. So threads wait passively, which costs a
quarter at worst where nobody else runs and saves a factor of three and more where somebody does; with it a thread
for each CPU is no worse than leaving one free. On machines with more CPUs one is left to the rest of the stack,
where its share is small.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

NATIVE_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}
"""Variables to set before llama_cpp is imported, unless the user has set them."""

CGROUP = Path("/sys/fs/cgroup")
FEW_CPUS = 2
"""Up to so many CPUs a decode gets all."""


def choose_threads() -> int:
    """Threads of a decode on this machine, when nobody names a number."""
    return threads_for(usable_cpus())


def threads_for(n_cpus: int) -> int:
    return n_cpus if n_cpus <= FEW_CPUS else n_cpus - 1


def usable_cpus(cgroup: Path = CGROUP) -> int:
    """CPUs that this process may use: those of its affinity, but no more than the quota of its container."""
    return max(1, int(min(len(os.sched_getaffinity(0)), cpu_quota(cgroup))))


def cpu_quota(cgroup: Path = CGROUP) -> float:
    """CPUs that a container may use on average; infinity without a limit. Reads cgroup v2, else v1."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    if quota in ("max", "-1"):
        return math.inf
    return int(quota) / int(period)
