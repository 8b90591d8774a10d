"""Parts of an engine that need no model."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np

from worker.engine import GenerateTask
from worker.engine.cells import Ids, Resident
from worker.engine.llama import Bytes
from worker.engine.sampling import Sampler, Setting
from worker.engine.sequence import Clock, Limits, Sequence
from worker.engine.transcript import Transcript

ROOM = 200


@dataclass(eq=False)
class Cell:
    """One token, and those that it was computed behind."""

    token: int
    behind: tuple[int, ...]


class ScriptedCache:
    """The cells of each sequence, as llama.cpp would have them. `can_rewind` False: all or nothing goes."""

    def __init__(self, can_rewind: bool = True, n_ids: int = 100) -> None:
        self.n_ids = n_ids
        self.cells: dict[int, list[Cell]] = {}
        self.shared: list[tuple[int, int, int, int]] = []
        self.shifted: list[tuple[int, int, int]] = []
        self._can_rewind = can_rewind

    @property
    def lengths(self) -> dict[int, int]:
        return {seq_id: len(cells) for seq_id, cells in self.cells.items()}

    def compute(self, seq_id: int, tokens: Several[int]) -> None:
        cells = self.cells.setdefault(seq_id, [])
        for token in tokens:
            cells.append(Cell(token, tuple(cell.token for cell in cells)))

    def truncate(self, seq_id: int, n_kept: int) -> bool:
        cells = self.cells.setdefault(seq_id, [])
        if not self._can_rewind and 0 < n_kept < len(cells):
            return False
        del cells[n_kept:]
        return True

    def share(self, source: int, target: int, start: int, end: int) -> None:
        assert source != target
        cells = self.cells.setdefault(target, [])
        assert len(self.cells[source]) >= end
        assert len(cells) == start
        assert 0 <= target < self.n_ids
        cells += self.cells[source][start:end]
        self.shared.append((source, target, start, end))

    def shift(self, seq_id: int, start: int, end: int) -> None:
        """All who have a cell see it move: so nobody else may."""
        cells = self.cells[seq_id]
        others = [cell for other, theirs in self.cells.items() if other != seq_id for cell in theirs]
        assert 0 <= start < end <= len(cells)
        assert not set(cells[end:]) & set(others)
        del cells[start:end]
        self.shifted.append((seq_id, start, end))

    def divide(self, seq_id: int, start: int, n: int) -> None:
        raise NotImplementedError

    def put_state(self, seq_id: int, saved: Bytes, n_positions: int) -> None:
        raise NotImplementedError


def buffer(tokens: Several[int]) -> Ids:
    room = np.zeros(ROOM, dtype=np.int32)
    room[: len(tokens)] = tokens
    return room


def sequence_in(slot: int, resident: Resident, task: GenerateTask, since: float = 0.0) -> Sequence:
    """As it stands when it has just got its slot."""
    return Sequence(
        task,
        resident,
        Sampler.of(task, Setting(n_vocab=256, n_ctx=ROOM)),
        Transcript((), lambda token: bytes([token])),
        Limits(ROOM, task.request.n_predict, frozenset()),
        Clock(queue_ms=0.0, started=since),
        slot,
        waits_since=since,
        placed_at=since,
    )
