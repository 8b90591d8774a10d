"""Who used the CPUs while something was measured: these machines are rarely alone. Linux only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """CPU seconds since the machine started."""

    busy_s: float
    """By everybody."""
    by_command: Mapping[str, float]
    """By the living processes of this session's tree, under the last words of their command lines."""

    def since(self, before: Usage) -> Usage:
        spent = {name: seconds - before.by_command.get(name, 0.0) for name, seconds in self.by_command.items()}
        return Usage(self.busy_s - before.busy_s, {name: seconds for name, seconds in spent.items() if seconds > 0})

    @property
    def others_s(self) -> float:
        return max(0.0, self.busy_s - sum(self.by_command.values()))


def usage() -> Usage:
    """Now. Processes count that descend from this one, itself included."""
    fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, *_ = fields
    parents, spent, names = {}, {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            words = (entry / "cmdline").read_bytes().decode(errors="replace").strip("\0").split("\0")
        except OSError:
            continue  # it ended while we looked
        pid = int(entry.name)
        parents[pid], spent[pid] = int(stat[1]), (int(stat[11]) + int(stat[12])) * _TICK_S
        names[pid] = " ".join(words[-2:])[-24:] if len(words) > 1 else words[0][-24:]
    ours = {pid for pid in parents if _descends(pid, os.getpid(), parents)}
    by_command: dict[str, float] = {}
    for pid in ours:
        by_command[names[pid]] = by_command.get(names[pid], 0.0) + spent[pid]
    return Usage((user + nice + system + irq + softirq) * _TICK_S, by_command)


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor
