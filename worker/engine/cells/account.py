"""How many cells of the cache are taken, and who shares them: llama.cpp knows, but does not tell.

Each position of each sequence is in one cell. A decode takes cells; sharing lets another sequence have the same ones;
a cell is free when no sequence has it any more. Cells have numbers of our own: which one llama.cpp took is all the
same, since any free one serves.

Knows nothing of tokens, of slots or of llama.cpp.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int32]


class Account:
    """The cells of all sequences of one cache with `n_cells`. Invariant: `n_free` is `n_cells` less the cells that at
    least one sequence has. A step costs a few microseconds for each sequence in it, whatever their lengths."""

    def __init__(self, n_cells: int, n_sequences: int) -> None:
        self.n_free = n_cells
        self._n_owners: Numbers = np.zeros(0, dtype=np.int32)
        """Of each cell."""
        self._unused: Numbers = np.empty(0, dtype=np.int32)
        """Numbers of cells that nobody has: the first `_n_unused`."""
        self._n_unused = 0
        self._cells: list[Numbers] = [np.empty(0, dtype=np.int32) for _ in range(n_sequences)]
        """Of each sequence, by position, with room to grow."""
        self._lengths = [0] * n_sequences

    def length(self, seq_id: int) -> int:
        """Positions that a sequence has."""
        return self._lengths[seq_id]

    def n_private(self, seq_id: int, start: int, end: int) -> int:
        """How many of the cells at positions [start, end) no other sequence has: those are free when it drops them."""
        return int(np.count_nonzero(self._n_owners[self._held(seq_id, start, end)] == 1))

    def n_held(self, parts: list[tuple[int, int]]) -> int:
        """Cells that stand in the first positions of some sequences, each counted once: (sequence, how many)."""
        is_held = np.zeros(len(self._n_owners), dtype=np.bool_)
        for seq_id, n_positions in parts:
            is_held[self._held(seq_id, 0, n_positions)] = True
        return int(np.count_nonzero(is_held))

    def have_common(self, left: int, right: int, start: int, end: int) -> bool:
        """Whether two sequences share cells at positions [start, end)."""
        end = min(end, self._lengths[left], self._lengths[right])
        return start < end and bool(np.any(self._held(left, start, end) == self._held(right, start, end)))

    def take(self, seq_id: int, n: int) -> None:
        """A sequence was computed by so many positions more."""
        if n > self._n_unused:
            self._number(n)
        self._n_unused -= n
        self.n_free -= n
        if n == 1 and (length := self._lengths[seq_id]) < len(self._cells[seq_id]):  # each row of each decode
            number = self._unused[self._n_unused]
            self._n_owners[number] = 1
            self._cells[seq_id][length] = number
            self._lengths[seq_id] = length + 1
            return
        numbers = self._unused[self._n_unused : self._n_unused + n]
        self._n_owners[numbers] = 1
        self._append(seq_id, numbers)

    def share(self, source: int, target: int, start: int, end: int) -> None:
        """`target`, which has `start` positions, has those up to `end` from `source` too."""
        assert self._lengths[target] == start <= end <= self._lengths[source]
        numbers = self._held(source, start, end)
        self._n_owners[numbers] += 1
        self._append(target, numbers)

    def cut(self, seq_id: int, n_kept: int) -> None:
        """A sequence lost its positions from `n_kept` on."""
        end = self._lengths[seq_id]
        if n_kept < end:
            self._drop(self._held(seq_id, n_kept, end))
            self._lengths[seq_id] = n_kept

    def close_gap(self, seq_id: int, start: int, end: int) -> None:
        """A sequence lost its positions [start, end), and those behind have moved up."""
        self._drop(self._held(seq_id, start, end))
        cells, length = self._cells[seq_id], self._lengths[seq_id]
        cells[start : start + length - end] = cells[end:length].copy()
        self._lengths[seq_id] = length - (end - start)

    def _held(self, seq_id: int, start: int, end: int) -> Numbers:
        assert 0 <= start <= end <= self._lengths[seq_id]
        return self._cells[seq_id][start:end]

    def _append(self, seq_id: int, numbers: Numbers) -> None:
        length = self._lengths[seq_id]
        end = length + len(numbers)
        if end > len(self._cells[seq_id]):
            self._cells[seq_id] = _with_room(self._cells[seq_id], end)
        self._cells[seq_id][length:end] = numbers
        self._lengths[seq_id] = end

    def _drop(self, numbers: Numbers) -> None:
        self._n_owners[numbers] -= 1
        freed = numbers[self._n_owners[numbers] == 0]
        self._unused[self._n_unused : self._n_unused + len(freed)] = freed
        self._n_unused += len(freed)
        self.n_free += len(freed)

    def _number(self, n: int) -> None:
        """Have at least `n` unused numbers."""
        n_before = len(self._n_owners)
        self._n_owners = _with_room(self._n_owners, n_before + n)
        n_new = len(self._n_owners) - n_before
        self._unused = _with_room(self._unused, len(self._n_owners))
        self._unused[self._n_unused : self._n_unused + n_new] = np.arange(n_before, n_before + n_new, dtype=np.int32)
        self._n_unused += n_new


def _with_room(numbers: Numbers, n: int) -> Numbers:
    """The same and zeros behind, `n` at least, and twice as many as before."""
    room = np.zeros(max(n, 2 * len(numbers)), dtype=np.int32)
    room[: len(numbers)] = numbers
    return room
