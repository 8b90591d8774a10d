"""Which idle sequence goes first when its cells, or its id, are needed, and how much of it.

The least recently used, but a prefix that it lent counts as used with every loan, and has proven that others come for
it: it outlasts what nobody asked for. So one holder of each shared prefix stays as long as there is room, and those
that had it from him go first, with what they have of their own.

Pure. Knows nothing of llama.cpp or of who needs the room.
"""

from __future__ import annotations

from collections.abc import Iterable

from worker.engine.cells.resident import Resident

TRUSTED = 512
"""So many uses of the cache longer is a lent prefix kept than one that nobody asked for."""


def least_missed(idle: Iterable[Resident]) -> Resident | None:
    """Who goes first as a whole."""
    return min(idle, key=_whole, default=None)


def least_missed_end(idle: Iterable[Resident]) -> tuple[Resident, int] | None:
    """Who loses cells first, and how many positions of it stay when all goes that is missed as little."""
    victim = min(idle, key=_end, default=None)
    if victim is None:
        return None
    return victim, victim.n_lent if victim.n_lent < victim.n_cached else 0


def _whole(resident: Resident) -> int:
    return max(resident.stamp, resident.lent_stamp + TRUSTED if resident.n_lent else 0)


def _end(resident: Resident) -> int:
    return resident.stamp if resident.n_lent < resident.n_cached else _whole(resident)
