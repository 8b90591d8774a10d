"""Plans one decode: which tokens of which sequences go together, and how many fit the time.

Pure. Knows nothing of llama.cpp, threads, tasks or text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

TARGET_MS = 250.0
"""A decode that somebody waits on for a next token should not take longer: half of it is felt as a stutter."""
TARGET_UNHURRIED_MS = 1000.0
"""A decode that nobody waits on: each costs some tens of milliseconds however little is in it, so fewer and larger
ones are quicker. Bounded all the same, since cancels, new tasks and the watchdog are looked at between decodes."""
MIN_PREFILL = 32
"""Tokens of prompts that a batch may always have, so that prefill never stands still."""
FIRST_PREFILL = 128
"""The same before anything was measured."""
SMOOTHING = 0.3
"""Weight of the newest measurement."""


class Wanting(Protocol):
    """What a plan asks of a sequence."""

    @property
    def is_generating(self) -> bool:
        """It has one token to decode, and somebody waits for the next."""

    @property
    def n_wanted(self) -> int:
        """Tokens that it could put into a batch now."""


S = TypeVar("S", bound=Wanting)


@dataclass(frozen=True, slots=True)
class Plan(Generic[S]):
    """One decode. Nothing of it is true of the sequences until the decode succeeded."""

    generating: tuple[S, ...] = ()
    """One row each."""
    prefill: tuple[tuple[S, int], ...] = ()
    """(sequence, how many of its pending tokens)."""

    @property
    def shares(self) -> Iterable[tuple[S, int]]:
        """Every sequence of the batch with its number of tokens, in the order of the rows."""
        yield from ((sequence, 1) for sequence in self.generating)
        yield from self.prefill

    @property
    def n_prefill(self) -> int:
        return sum(n_tokens for _, n_tokens in self.prefill)

    @property
    def n_sequences(self) -> int:
        return len(self.generating) + len(self.prefill)


def plan_batch(sequences: Sequence[S], n_batch: int, n_prefill: int) -> Plan[S]:
    """A row for each generating sequence first, then prompts in fair shares of at most `n_prefill` tokens."""
    generating = [sequence for sequence in sequences if sequence.is_generating][:n_batch]
    prompts = [sequence for sequence in sequences if not sequence.is_generating and sequence.n_wanted > 0]
    room = min(n_prefill, n_batch - len(generating))
    shares = fair_shares([sequence.n_wanted for sequence in prompts], room)
    prefill = [(sequence, share) for sequence, share in zip(prompts, shares, strict=True) if share]
    return Plan(tuple(generating), tuple(prefill))


def fair_shares(wanted: Sequence[int], room: int) -> list[int]:
    """Divide `room` so that nobody gets more than it wants and nobody could be given more at the cost of a richer
    one (max-min fairness). What does not divide evenly goes to the first of the richest."""
    shares = [0] * len(wanted)
    by_want = sorted(range(len(wanted)), key=lambda index: (wanted[index], -index))
    for n_left, index in zip(range(len(wanted), 0, -1), by_want, strict=True):
        shares[index] = min(wanted[index], room // n_left)
        room -= shares[index]
    return shares


class Pace:
    """Learns what a decode costs, and says how many prompt tokens fit into one."""

    def __init__(self, n_batch: int) -> None:
        self._n_batch = n_batch
        self._rows_ms = 0.0
        """A decode of generating rows alone."""
        self._token_ms: float | None = None
        """Each prompt token more."""

    def observe(self, n_generating: int, n_prefill: int, elapsed_ms: float) -> None:
        """A decode took this long."""
        if n_prefill == 0:
            self._rows_ms = _smooth(self._rows_ms or elapsed_ms, elapsed_ms)
        elif n_prefill >= MIN_PREFILL // 2:
            base_ms = min(self._rows_ms, elapsed_ms / 2) if n_generating else 0.0
            token_ms = (elapsed_ms - base_ms) / n_prefill
            self._token_ms = _smooth(self._token_ms or token_ms, token_ms)

    def prefill_budget(self, n_generating: int, *, is_hurried: bool = True) -> int:
        """Prompt tokens for the next decode beside so many generating rows; hurried when a person waits for one."""
        if self._token_ms is None:
            return min(FIRST_PREFILL, self._n_batch)
        target_ms = TARGET_MS if n_generating and is_hurried else TARGET_UNHURRIED_MS
        room_ms = target_ms - (self._rows_ms if n_generating else 0.0)
        n_fitting = int(max(room_ms, 0.0) / max(self._token_ms, 1e-6))
        return min(max(n_fitting, MIN_PREFILL), self._n_batch)


def _smooth(average: float, value: float) -> float:
    return average + SMOOTHING * (value - average)
