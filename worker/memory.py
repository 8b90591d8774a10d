"""How much memory this process may still take: the machine's, but no more than its container's.

What is told is an upper bound, so that nobody is refused what would have fitted: caches of files count as free, and
room to swap to counts too. Knows nothing of llama.cpp.
"""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
PROC = Path("/proc")
RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable", "total_inactive_file", "total_active_file")
"""Of a container's `memory.stat` (cgroup v2 and v1): what the kernel takes back before it kills anybody."""


def free_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """None where the system does not say."""
    try:
        machine = _fields(proc / "meminfo")
        free = (machine["MemAvailable"] + machine.get("SwapFree", 0)) * 1024
    except (OSError, KeyError, ValueError):
        return None
    return min((free, *_left(proc, cgroup, machine.get("SwapFree", 0) * 1024)))


def _left(proc: Path, cgroup: Path, swap: int) -> list[int]:
    """What each group with a limit leaves that this process is in."""
    left = []
    for folder in _groups(proc, cgroup):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                room = int((folder / limit).read_text()) - int((folder / used).read_text())
                stat = _fields(folder / "memory.stat")
            except (OSError, ValueError):
                continue  # no such file, or `max`
            left.append(max(0, room + swap) + sum(stat.get(name, 0) for name in RECLAIMABLE))
    return left


def _groups(proc: Path, cgroup: Path) -> list[Path]:
    """Folders of the groups, from the own one up to the root's."""
    try:
        lines = [line.split(":", 2) for line in (proc / "self" / "cgroup").read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, name in (line for line in lines if len(line) == 3):
        if controllers not in ("", "memory"):
            continue
        root = cgroup / controllers
        own = root / name.lstrip("/")
        found += [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return found


def _fields(path: Path) -> dict[str, int]:
    """Lines of a name and a number, as /proc and /sys have them."""
    pairs = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}


def in_words(n_bytes: int) -> str:
    """`1.5 GB`, as people say it."""
    for unit, size in (("TB", 10**12), ("GB", 10**9)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes / 10**6:.0f} MB"
