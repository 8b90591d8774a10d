"""Plans one decode: which tokens of which sequences go together, and how many fit the time.

On a CPU every row and every prompt token of a batch costs all others time, so bulk yields to people (`Yielding`).

Pure. Knows nothing of llama.cpp, threads, tasks or text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

TARGET_MS = 250.0
"""A decode that somebody waits on for a next token should not take longer: half of it is felt as a stutter. Nor should
one of bulk, while people come who interrupt it: what it computed is lost."""
TARGET_UNHURRIED_MS = 1000.0
"""A decode that nobody waits on: each costs some tens of milliseconds however little is in it, so fewer and larger
ones are quicker. Bounded all the same, since cancels, new tasks and the watchdog are looked at between decodes."""
MIN_PREFILL = 32
"""Tokens of prompts that a batch may always have, so that prefill never stands still."""
FIRST_PREFILL = 128
"""The same before anything was measured."""
SMOOTHING = 0.3
"""Weight of the newest measurement of a prompt token."""
ROWS_SMOOTHING = 0.05
"""The same for rows: those are measured with every decode, while their number seldom changes."""
LITTLE_VARIANCE = 0.1
"""Of the numbers of rows that were measured: with no more than that, what a row costs is mostly guessed."""

STRETCH = 1.5
"""So many times as long may people's decodes take for the sake of bulk."""
STRETCH_AWAITED = 1.25
"""The same while one of them waits for a first token, in turns of bulk's own; in others bulk sits out."""
OWN_TURN_EVERY = 48
"""Decodes of people after which bulk has a turn of its own, in which it may take longer. Rows and embeddings have
one each, which is 2 in 48: the 95th percentile of people's decodes knows nothing of them."""
ALONE_EVERY = 8
"""Every so many decodes of people carry no bulk: else it would not be known for long what those alone take."""
OWN_TURN_MS = 100.0
"""How long that one is, with people's rows in it: a pause too short to be felt."""


class Wanting(Protocol):
    """What a plan asks of a sequence."""

    @property
    def is_generating(self) -> bool:
        """It has one token to decode, and somebody waits for the next."""

    @property
    def n_wanted(self) -> int:
        """Tokens that it could put into a batch now, or rows of an image."""

    @property
    def is_at_image(self) -> bool:
        """They are rows, which no batch of tokens has."""

    @property
    def n_least(self) -> int:
        """So many of them at least, if any."""


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

    def of(self, is_kept: Callable[[S], bool]) -> Plan[S]:
        """The same with some of the sequences only."""
        prefill = tuple((sequence, n_tokens) for sequence, n_tokens in self.prefill if is_kept(sequence))
        return Plan(tuple(filter(is_kept, self.generating)), prefill)

    @property
    def n_prefill(self) -> int:
        return sum(n_tokens for _, n_tokens in self.prefill)

    @property
    def n_tokens(self) -> int:
        return len(self.generating) + self.n_prefill

    @property
    def n_sequences(self) -> int:
        return len(self.generating) + len(self.prefill)

    @property
    def can_shrink(self) -> bool:
        """Whether fewer tokens of the same sequences could be decoded."""
        return any(n_tokens > sequence.n_least for sequence, n_tokens in self.prefill)


def plan_batch(sequences: Sequence[S], n_batch: int, n_prefill: int) -> Plan[S]:
    """A row for each generating sequence first, then prompts in fair shares of at most `n_prefill` tokens."""
    generating = [sequence for sequence in sequences if sequence.is_generating][:n_batch]
    prompts = [sequence for sequence in sequences if not sequence.is_generating and wants_tokens(sequence)]
    room = min(n_prefill, n_batch - len(generating))
    shares = fair_shares([sequence.n_wanted for sequence in prompts], room)
    prefill = [(sequence, share) for sequence, share in zip(prompts, shares, strict=True) if share]
    return Plan(tuple(generating), tuple(prefill))


def plan_image(sequence: S, n_prefill: int) -> Plan[S]:
    """Rows of one image, which are a decode of their own: at most `n_prefill`, unless it wants all at once."""
    return Plan((), ((sequence, min(sequence.n_wanted, max(n_prefill, sequence.n_least))),))


def fair_shares(wanted: Sequence[int], room: int) -> list[int]:
    """Divide `room` so that nobody gets more than it wants and nobody could be given more at the cost of a richer
    one (max-min fairness). What does not divide evenly goes to the first of the richest."""
    shares = [0] * len(wanted)
    by_want = sorted(range(len(wanted)), key=lambda index: (wanted[index], -index))
    for n_left, index in zip(range(len(wanted), 0, -1), by_want, strict=True):
        shares[index] = min(wanted[index], room // n_left)
        room -= shares[index]
    return shares


class Room(NamedTuple):
    """What is left for bulk in a decode of people."""

    ms: float
    must_serve: bool
    """Somebody gets something even if there is no room at all."""


def with_bulk(plan: Plan[S], bulk: Iterable[S], room: Room, pace: Pace, *, n_batch: int, n_prefill: int) -> Plan[S]:
    """People's plan and as much of bulk as there is room for. Strictly in order: whoever does not fit holds up those
    behind, or rows would leave no room for prompts for ever."""
    generating: list[S] = []
    prefill: list[tuple[S, int]] = []
    ms, n_free, n_prefill = room.ms, n_batch - plan.n_tokens, n_prefill - plan.n_prefill
    for sequence in filter(wants_tokens, bulk):
        at_least = 1 if room.must_serve and not (generating or prefill) else 0
        cost_ms = pace.row_ms if sequence.is_generating else pace.token_ms
        n_fitting = max(int(ms / cost_ms) if cost_ms > 0 else 0, at_least)
        n_tokens = min(sequence.n_wanted, n_fitting, n_free, n_free if sequence.is_generating else n_prefill)
        if n_tokens <= 0:
            break
        if sequence.is_generating:
            generating.append(sequence)
        else:
            prefill.append((sequence, n_tokens))
            n_prefill -= n_tokens
        ms, n_free = ms - n_tokens * cost_ms, n_free - n_tokens
    return Plan((*plan.generating, *generating), (*plan.prefill, *prefill))


class Yielding:
    """Counts the decodes of people since bulk had a turn of its own, and says what room there is for it.

    Bound: of `OWN_TURN_EVERY` decodes in a row at most one is expected to take more than `STRETCH` times as long as
    for people alone; and bulk that wants something gets something in one of them at least.
    """

    def __init__(self) -> None:
        self._n_passed = 0

    def passed(self) -> None:
        """A decode of people went by."""
        self._n_passed += 1

    def took_turn(self) -> None:
        """Bulk had a turn of its own."""
        self._n_passed = 0

    def is_due(self, people_ms: float = 0.0, cost_ms: float = 0.0) -> bool:
        """Whether bulk may have a turn of its own. One that cannot be cut short waits the longer the more it costs, so
        that people's decodes of `people_ms` are not stretched on average either."""
        is_afforded = self._n_passed * people_ms * (STRETCH - 1) >= cost_ms
        return self._n_passed >= OWN_TURN_EVERY and is_afforded

    def room(self, people_ms: float, *, is_awaited: bool) -> Room:
        """For bulk, in the next decode of people, which is expected to take `people_ms` without."""
        if is_awaited:
            return Room((STRETCH_AWAITED - 1) * people_ms, True) if self.is_due() else Room(0.0, False)
        room_ms = (STRETCH - 1) * people_ms
        if self.is_due():
            return Room(max(OWN_TURN_MS - people_ms, room_ms), True)
        return Room(0.0 if self._n_passed % ALONE_EVERY == 0 else room_ms, False)


class RowCost:
    """What a decode of rows alone takes: a line through recent ones, `base_ms + n * row_ms`.

    Without knowledge a row is taken to cost its full share of a decode. That is dearer than it can be, so that bulk is
    never taken to be cheaper than it is: the line is drawn between that guess and the fit, by how much rows varied.
    """

    def __init__(self) -> None:
        self._n_seen = 0
        self._mean_n = self._mean_ms = self._variance = self._covariance = 0.0

    def observe(self, n_rows: int, elapsed_ms: float) -> None:
        self._n_seen += 1
        weight = max(ROWS_SMOOTHING, 1 / self._n_seen)
        by_n, by_ms = n_rows - self._mean_n, elapsed_ms - self._mean_ms
        self._mean_n += weight * by_n
        self._mean_ms += weight * by_ms
        self._variance = (1 - weight) * (self._variance + weight * by_n * by_n)
        self._covariance = (1 - weight) * (self._covariance + weight * by_n * by_ms)

    @property
    def row_ms(self) -> float:
        """Each row more; 0 before anything was measured."""
        if not self._n_seen:
            return 0.0
        share_ms = self._mean_ms / self._mean_n
        fit = (self._covariance + LITTLE_VARIANCE * share_ms) / (self._variance + LITTLE_VARIANCE)
        return min(max(fit, 0.0), share_ms)

    def expected_ms(self, n_rows: int) -> float:
        """So many rows; none cost nothing."""
        return self._mean_ms + self.row_ms * (n_rows - self._mean_n) if n_rows else 0.0

    def least_ms(self, n_rows: int) -> float:
        """The same, but no more than it surely is: beyond the usual number of rows the line may be too steep."""
        return min(self.expected_ms(n_rows), self._mean_ms)


class Pace:
    """Learns what a decode costs, and says how many prompt tokens fit into one."""

    def __init__(self, n_batch: int) -> None:
        self.n_batch = n_batch
        self._rows = RowCost()
        self._token_ms: float | None = None
        """Each prompt token more."""

    def observe(self, n_generating: int, n_prefill: int, elapsed_ms: float) -> None:
        """A decode took this long."""
        if n_prefill == 0:
            self._rows.observe(n_generating, elapsed_ms)
        elif n_prefill >= MIN_PREFILL // 2:
            base_ms = min(self._rows.least_ms(n_generating), elapsed_ms / 2)
            token_ms = (elapsed_ms - base_ms) / n_prefill
            self._token_ms = _smooth(self._token_ms or token_ms, token_ms)

    @property
    def row_ms(self) -> float:
        """A generating row more; 0 before anything was measured."""
        return self._rows.row_ms

    @property
    def token_ms(self) -> float:
        """A prompt token more; as much as a row before any was measured."""
        return self.row_ms if self._token_ms is None else self._token_ms

    def expected_ms(self, n_generating: int, n_prefill: int) -> float:
        return self._rows.expected_ms(n_generating) + n_prefill * self.token_ms

    def least_ms(self, n_generating: int, n_prefill: int) -> float:
        """The same, where too much would be worse than too little."""
        return self._rows.least_ms(n_generating) + n_prefill * self.token_ms

    def prefill_budget(self, n_generating: int, *, is_hurried: bool = True) -> int:
        """Prompt tokens for the next decode beside so many generating rows; hurried when it should soon be over."""
        if self._token_ms is None:
            return min(FIRST_PREFILL, self.n_batch)
        target_ms = TARGET_MS if is_hurried else TARGET_UNHURRIED_MS
        room_ms = target_ms - self._rows.expected_ms(n_generating)
        n_fitting = int(max(room_ms, 0.0) / max(self._token_ms, 1e-6))
        return min(max(n_fitting, MIN_PREFILL), self.n_batch)


def wants_tokens(sequence: Wanting) -> bool:
    return sequence.n_wanted > 0 and not sequence.is_at_image


def _smooth(average: float, value: float) -> float:
    return average + SMOOTHING * (value - average)
