"""How much memory is free: the machine's, and what a container leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.memory import free_bytes, in_words

MB = 2**20


def machine(folder: Path, *, available_mb: int, swap_mb: int = 0, groups: str = "0::/") -> tuple[Path, Path]:
    proc, cgroup = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(
        f"MemTotal: 99999999 kB\nMemAvailable: {available_mb * 1024} kB\nSwapFree: {swap_mb * 1024} kB\nHugePages: 0\n"
    )
    (proc / "self" / "cgroup").write_text(groups)
    cgroup.mkdir()
    return proc, cgroup


def group(folder: Path, limit: str, used_mb: int, files_mb: int = 0, *, version: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, text in zip(names, (limit, str(used_mb * MB)), strict=True):
        (folder / name).write_text(text)
    field = "inactive_file" if version == 2 else "total_inactive_file"
    (folder / "memory.stat").write_text(f"anon 5\n{field} {files_mb * MB}\n")


def test_without_a_container_it_is_what_the_machine_has_with_room_to_swap(tmp_path: Path) -> None:
    assert free_bytes(*machine(tmp_path, available_mb=100, swap_mb=20)) == 120 * MB


def test_a_containers_limit_counts_and_caches_of_files_are_free(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, available_mb=1000)
    group(cgroup, str(64 * MB), used_mb=60, files_mb=16)
    assert free_bytes(proc, cgroup) == 20 * MB


def test_any_group_above_counts_too(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, available_mb=1000, groups="0::/pod/container\n")
    group(cgroup / "pod" / "container", "max", used_mb=1)
    group(cgroup / "pod", str(50 * MB), used_mb=20)
    assert free_bytes(proc, cgroup) == 30 * MB


def test_the_older_groups_are_read(tmp_path: Path) -> None:
    proc, cgroup = machine(tmp_path, available_mb=1000, groups="3:cpu:/a\n4:memory:/a\n0::/\n")
    group(cgroup / "memory", str(2**63 - 4096), used_mb=500, version=1)
    group(cgroup / "memory" / "a", str(40 * MB), used_mb=30, files_mb=5, version=1)
    assert free_bytes(proc, cgroup) == 15 * MB


def test_where_nothing_is_said_nothing_is_known(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(("n", "words"), [(5 * 10**6, "5 MB"), (1_500_000_000, "1.5 GB"), (24 * 10**12, "24.0 TB")])
def test_sizes_are_said_in_words(n: int, words: str) -> None:
    assert in_words(n) == words
