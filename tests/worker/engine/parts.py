"""Parts of an engine that need no model."""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np

from worker.engine import GenerateTask
from worker.engine.cells import Ids, Resident
from worker.engine.sampling import Sampler
from worker.engine.sequence import Clock, Limits, Sequence
from worker.engine.transcript import Transcript

ROOM = 200


class ScriptedCache:
    """Which positions each sequence has, as llama.cpp would have it. `can_rewind` False: all or nothing goes."""

    def __init__(self, can_rewind: bool = True, n_ids: int = 100) -> None:
        self.n_ids = n_ids
        self.lengths: dict[int, int] = {}
        self.shared: list[tuple[int, int, int, int]] = []
        self._can_rewind = can_rewind

    def truncate(self, seq_id: int, n_kept: int) -> bool:
        if not self._can_rewind and 0 < n_kept < self.lengths.get(seq_id, 0):
            return False
        self.lengths[seq_id] = min(self.lengths.get(seq_id, 0), n_kept)
        return True

    def share(self, source: int, target: int, start: int, end: int) -> None:
        assert source != target
        assert self.lengths[source] >= end
        assert self.lengths.get(target, 0) == start
        assert 0 <= target < self.n_ids
        self.lengths[target] = end
        self.shared.append((source, target, start, end))


def buffer(tokens: Several[int]) -> Ids:
    room = np.zeros(ROOM, dtype=np.int32)
    room[: len(tokens)] = tokens
    return room


def sequence_in(slot: int, resident: Resident, task: GenerateTask, since: float = 0.0) -> Sequence:
    """As it stands when it has just got its slot."""
    return Sequence(
        task,
        resident,
        Sampler(task.request.sampling, task.seed, n_vocab=256),
        Transcript((), lambda token: bytes([token])),
        Limits(ROOM, task.request.n_predict, frozenset()),
        Clock(queue_ms=0.0, started=since),
        slot,
        waits_since=since,
        placed_at=since,
    )
