"""Who is at fault when a decode fails: some of its sequences, or the context that computes them all.

What failed is tried again with fewer prompt tokens, then in halves, down to single sequences; one that fails alone is
*accused*. Once anybody's decode has succeeded, the context works and the accused are guilty; those who were not part
of the failure are tried before that is given up. If all fail, the context is rebuilt. Whoever is accused again after a
rebuild for its sake is guilty as well; but several at once, or one after another with nothing computed between, mean
that rebuilding is no cure.

Pure. Knows nothing of llama.cpp, cells or errors: it is told of outcomes and says what comes next.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar


class ContextBroken(Exception):
    """Nothing can be computed here any more; the jobs may fare better elsewhere."""


class Suspect(Protocol):
    """What an inquiry asks of a sequence."""

    @property
    def has_slot(self) -> bool: ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def is_generating(self) -> bool: ...

    @property
    def n_wanted(self) -> int:
        """Tokens that it could put into a batch now."""

    @property
    def n_cached(self) -> int:
        """Its tokens that are in the cache."""


S = TypeVar("S", bound=Suspect)


class Trial(NamedTuple, Generic[S]):
    """Decode these next, and nobody else, with so many prompt tokens at most."""

    sequences: tuple[S, ...]
    n_prefill: int


class Guilty(NamedTuple, Generic[S]):
    """These fail, and nobody else."""

    sequences: tuple[S, ...]
    reason: str


class Rebuild(NamedTuple):
    """All cells are lost: make the context anew and let everybody go on from its tokens."""

    reason: str


class GiveUp(NamedTuple):
    """Nothing that could be done here helps."""

    reason: str


class Inquiry(Generic[S]):
    """Between two failures it is closed and costs nothing. For the decode thread.

    After each decode it is told `failed`, `passed` or `spoiled`; before each, `proceed` says what comes next.
    """

    def __init__(self) -> None:
        self._trials: list[Trial[S]] = []
        """What is still to be tried, the next one last."""
        self._is_open = False
        self._reason = ""
        self._reached: dict[S, int] = {}
        """Those who were tried, and how much each had in the cache when it failed: what a failure costs some models
        is their whole state, and computing that again clears nobody."""
        self._accused: list[S] = []
        self._has_passed = False
        """Somebody's decode has succeeded since the inquiry was opened."""
        self._had_rebuild: set[S] = set()
        """Those for whose sake the context was rebuilt."""
        self._was_unproven = False
        """The last verdict went against a lone sequence, and nothing was computed since."""

    @property
    def is_open(self) -> bool:
        return self._is_open

    def failed(self, sequences: Iterable[S], n_prefill: int, reason: str) -> None:
        """A decode of these, with so many prompt tokens, failed. Told before anything is taken out of the cache."""
        members = tuple(sequences)
        self._reason = reason
        reached = {sequence: max(sequence.n_cached, self._reached.get(sequence, 0)) for sequence in members}
        if not self._is_open:
            self._is_open, self._has_passed = True, False
            self._reached, self._accused = reached, []
            self._trials = [Trial(members, n_prefill // 2 or sys.maxsize)]
            return
        self._reached |= reached
        n_prefill = self._trials[-1].n_prefill if self._trials else n_prefill
        self._take_out(members)
        if len(members) == 1:
            self._accused += members
            return
        half = len(members) // 2
        self._trials += [Trial(members[half:], n_prefill), Trial(members[:half], n_prefill)]

    def passed(self, sequences: Iterable[S]) -> None:
        """A decode of these succeeded."""
        self._was_unproven = False
        if not self._is_open:
            return
        cleared = [sequence for sequence in sequences if sequence.n_cached > self._reached.get(sequence, -1)]
        if cleared:
            self._has_passed = True
            self._take_out(cleared)

    def spoiled(self, sequences: Iterable[S], reason: str, *, has_sound: bool) -> Guilty[S] | Rebuild:
        """A decode succeeded, but these have logits that are not numbers. `has_sound`: another had logits that are.

        What is no number spreads from the cache to all rows. So where there is no sound one, the cache may be at
        fault; a fresh one surely is not.
        """
        members = tuple(sequences)
        if self._is_open:
            self._take_out(members)
        if has_sound or self._had_rebuild.issuperset(members):
            return Guilty(members, reason)
        return self._rebuild(members, reason)

    def proceed(self, running: Iterable[S]) -> Trial[S] | Guilty[S] | Rebuild | GiveUp | None:
        """What is next; None when nobody is under suspicion. `running` are all that have a slot."""
        if not self._is_open:
            return None
        while self._trials:
            trial = self._trials[-1]
            if members := tuple(sequence for sequence in trial.sequences if _can_be_tried(sequence)):
                return Trial(members, trial.n_prefill)
            self._trials.pop()
        accused = tuple(sequence for sequence in self._accused if not sequence.has_ended)
        others = tuple(each for each in running if each not in self._reached and _can_be_tried(each))
        if accused and others and not self._has_passed:
            self._reached |= dict.fromkeys(others, -1)
            self._trials.append(Trial(others, len(others)))
            return self._trials[-1]
        self._close()
        return self._verdict(accused) if accused else None

    def _verdict(self, accused: tuple[S, ...]) -> Guilty[S] | Rebuild | GiveUp:
        if self._has_passed:
            return Guilty(accused, self._reason)
        if not self._had_rebuild.issuperset(accused):
            return self._rebuild(accused, self._reason)
        if len(accused) > 1 or self._was_unproven:
            return GiveUp(self._reason)
        self._was_unproven = True
        return Guilty(accused, self._reason)

    def _rebuild(self, accused: tuple[S, ...], reason: str) -> Rebuild:
        self._had_rebuild = {sequence for sequence in self._had_rebuild if not sequence.has_ended}.union(accused)
        self._close()
        return Rebuild(reason)

    def _close(self) -> None:
        self._is_open = False
        self._reached, self._trials, self._accused = {}, [], []

    def _take_out(self, sequences: Iterable[S]) -> None:
        """These have been tried; who was meant to be with them and had no room is still to be."""
        if not self._trials:
            return
        trial, gone = self._trials.pop(), set(sequences)
        if left := tuple(sequence for sequence in trial.sequences if sequence not in gone):
            self._trials.append(Trial(left, trial.n_prefill))


def _can_be_tried(sequence: Suspect) -> bool:
    return sequence.has_slot and (sequence.is_generating or sequence.n_wanted > 0)
