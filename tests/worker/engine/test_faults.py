"""Who is at fault, without a model: decodes are a rule that says whether they fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from worker.engine.faults import GiveUp, Guilty, Inquiry, Rebuild, Trial


@dataclass(eq=False)
class Someone:
    name: str
    n_cached: int = 0
    n_wanted: int = 1
    is_generating: bool = False
    has_slot: bool = True
    has_ended: bool = False


Fails = Callable[[tuple[str, ...]], bool]


class Court:
    """An engine reduced to what an inquiry sees of it. Whoever is guilty ends."""

    def __init__(self, names: str, fails: Fails) -> None:
        self.running = [Someone(name) for name in names]
        self.inquiry: Inquiry[Someone] = Inquiry()
        self.fails = fails
        self.decodes: list[str] = []
        self.verdicts: list[Guilty[Someone] | Rebuild | GiveUp] = []

    def decode(self, sequences: list[Someone], n_prefill: int = 8) -> None:
        names = tuple(sequence.name for sequence in sequences)
        self.decodes.append("".join(names))
        if self.fails(names):
            self.inquiry.failed(sequences, n_prefill, "it failed")
            return
        for sequence in sequences:
            sequence.n_cached += 1
        self.inquiry.passed(sequences)

    def step(self) -> None:
        step = self.inquiry.proceed(self.running)
        if isinstance(step, Trial):
            self.decode(list(step.sequences), step.n_prefill)
        elif step is not None:
            self.verdicts.append(step)
            if isinstance(step, Guilty):
                for sequence in step.sequences:
                    sequence.has_slot, sequence.has_ended = False, True
                    self.running.remove(sequence)
        elif self.running:
            self.decode(self.running)

    def run(self, n_steps: int = 40) -> None:
        for _ in range(n_steps):
            if self.verdicts and isinstance(self.verdicts[-1], GiveUp):
                return
            self.step()

    @property
    def guilty(self) -> str:
        return "".join(each.name for verdict in self.verdicts if isinstance(verdict, Guilty) for each in verdict[0])


@pytest.mark.parametrize("bad", ["a", "d", "h", "bg"])
def test_halves_find_whoever_is_at_fault_and_nobody_else(bad: str) -> None:
    court = Court("abcdefgh", lambda names: bool(set(names) & set(bad)))
    court.run()
    assert court.guilty == bad
    assert not any(isinstance(verdict, Rebuild | GiveUp) for verdict in court.verdicts)
    assert court.decodes[:2] == ["abcdefgh"] * 2
    assert len(court.decodes[: court.decodes.index("".join(each.name for each in court.running))]) <= 2 + 3 * 4


def test_what_failed_once_is_nobodys_fault() -> None:
    failures = iter([True])
    court = Court("abc", lambda names: next(failures, False))
    court.run(10)
    assert court.verdicts == []
    assert set(court.decodes) == {"abc"}


def test_what_failed_is_tried_again_with_half_as_much() -> None:
    inquiry: Inquiry[Someone] = Inquiry()
    sequence = Someone("a")
    inquiry.failed([sequence], 100, "it failed")
    trial = inquiry.proceed([sequence])
    assert isinstance(trial, Trial)
    assert trial.n_prefill == 50


def test_when_all_fail_the_context_is_rebuilt_and_given_up_when_that_does_not_help() -> None:
    court = Court("abc", lambda names: True)
    court.run()
    assert [type(verdict) for verdict in court.verdicts] == [Rebuild, GiveUp]


def test_when_all_fail_and_the_new_context_works_nobody_is_guilty() -> None:
    court = Court("abc", lambda names: not court.verdicts)
    court.run()
    assert [type(verdict) for verdict in court.verdicts] == [Rebuild]


def test_a_lone_sequence_is_guilty_after_a_rebuild_for_its_sake_but_not_two_in_a_row() -> None:
    court = Court("a", lambda names: True)
    court.run()
    assert [type(verdict) for verdict in court.verdicts] == [Rebuild, Guilty]
    court.running.append(Someone("b"))
    court.run()
    assert [type(verdict) for verdict in court.verdicts[2:]] == [Rebuild, GiveUp]


def test_who_fails_alone_is_judged_by_how_others_fare_before_anything_is_rebuilt() -> None:
    court = Court("abc", lambda names: "a" in names)
    court.decode(court.running[:1])
    court.run(10)
    assert [type(verdict) for verdict in court.verdicts] == [Guilty]
    assert court.decodes[:3] == ["a", "a", "bc"]


def test_a_state_that_was_lost_and_computed_again_clears_nobody() -> None:
    """A model that cannot drop the end of a sequence begins again, and all goes well up to where it failed."""
    court = Court("ab", lambda names: "a" in names and court.running[0].n_cached == 5)
    failed = court.inquiry.failed

    def lose_all(sequences: list[Someone], n_prefill: int, reason: str) -> None:
        failed(sequences, n_prefill, reason)
        for sequence in sequences:
            sequence.n_cached = 0

    court.inquiry.failed = lose_all  # type: ignore[method-assign, assignment]
    court.run(60)
    assert court.guilty == "a"
    assert court.running[0].n_cached > 5


def test_whoever_ends_or_is_parked_meanwhile_is_tried_no_more() -> None:
    court = Court("abcd", lambda names: "a" in names)
    court.decode(court.running)
    gone, parked = court.running[0], court.running[1]
    gone.has_ended, gone.has_slot, parked.has_slot = True, False, False
    court.running = court.running[2:]
    court.run(5)
    assert court.verdicts == []
    assert set(court.decodes[1:]) == {"cd"}


def test_a_row_that_is_no_number_is_its_sequences_fault_when_another_is_sound() -> None:
    a, inquiry = Someone("a"), Inquiry[Someone]()
    assert inquiry.spoiled([a], "nan", has_sound=True) == Guilty((a,), "nan")


def test_when_no_row_is_sound_the_cache_is_emptied_once() -> None:
    a, b, inquiry = Someone("a"), Someone("b"), Inquiry[Someone]()
    assert inquiry.spoiled([a, b], "nan", has_sound=False) == Rebuild("nan")
    assert inquiry.spoiled([a, b], "nan", has_sound=False) == Guilty((a, b), "nan")
