import math
import os
from pathlib import Path

import pytest

from worker.threads import NATIVE_ENVIRONMENT, choose_threads, cpu_quota, threads_for, usable_cpus


@pytest.mark.parametrize(("n_cpus", "n_threads"), [(1, 1), (2, 2), (3, 2), (4, 3), (64, 63)])
def test_a_big_machine_keeps_one_cpu_for_the_rest_of_the_stack(n_cpus: int, n_threads: int) -> None:
    assert threads_for(n_cpus) == n_threads


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, math.inf),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
    ],
)
def test_the_quota_of_a_container_is_read(tmp_path: Path, files: dict[str, str], quota: float) -> None:
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    assert cpu_quota(tmp_path) == quota
    assert usable_cpus(tmp_path) == max(1, min(len(os.sched_getaffinity(0)), int(min(quota, 4096))))


def test_this_machine_gets_at_least_one_thread_and_waits_passively() -> None:
    assert choose_threads() >= 1
    assert NATIVE_ENVIRONMENT["OMP_WAIT_POLICY"] == "passive"
