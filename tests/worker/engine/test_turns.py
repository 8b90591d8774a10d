from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from worker.engine.turns import Turns

PAUSE_S = 0.125
EPSILON_S = 1e-9


class Wait(NamedTuple):
    since: float
    n_before: int
    """Others that wanted something when it began."""
    n_turns: int
    """Of all, until then."""


@settings(max_examples=60, deadline=None)
@example([(frozenset("abc"), 2**-6)] * 4 + [(frozenset("bc"), 2**-6)] * 10)  # fewer than when its wait began
@given(
    st.lists(
        st.tuples(st.frozensets(st.sampled_from("abcdef"), min_size=1), st.floats(0.001, 0.3)), min_size=1, max_size=60
    )
)
def test_whoever_wants_something_waits_for_one_turn_of_each_who_did_before_and_for_a_pause_in_all(
    steps: list[tuple[frozenset[str], float]],
) -> None:
    """Whoever comes later; and a decode is not cut short, so that each of those turns may be one too long."""
    turns: Turns[str] = Turns(PAUSE_S)
    longest_s = max(elapsed_s for _, elapsed_s in steps)
    now, n_turns, current, waits = 100.0, 0, "", dict[str, Wait]()
    for wanting, elapsed_s in steps:
        waits = {each: waits.get(each, Wait(now, len(wanting) - 1, n_turns)) for each in wanting}
        before, current = current, turns.next(wanting, now)
        assert current in wanting
        n_turns += current != before
        del waits[current]
        for wait in waits.values():
            assert n_turns - wait.n_turns <= wait.n_before
            assert now - wait.since <= PAUSE_S + wait.n_before * longest_s + EPSILON_S
        now += elapsed_s


@pytest.mark.parametrize("n_sets", [2, 3, 5])
@pytest.mark.parametrize("decode_s", [2**-9, 2**-6, 2**-2])
def test_those_who_always_want_something_compute_equally_long_and_change_no_oftener_than_they_must(
    n_sets: int, decode_s: float
) -> None:
    turns: Turns[int] = Turns(PAUSE_S)
    chosen = [turns.next(range(n_sets), 100.0 + step * decode_s) for step in range(1000)]
    turn_s = max(PAUSE_S / (n_sets - 1), decode_s)
    assert max(Counter(chosen).values()) - min(Counter(chosen).values()) <= turn_s / decode_s + 1
    assert sum(left != right for left, right in pairwise(chosen)) * turn_s <= 1000 * decode_s


def test_one_alone_goes_on_and_gives_way_at_once_when_it_has_had_enough() -> None:
    turns: Turns[str] = Turns(PAUSE_S)
    assert [turns.next("a", 100.0 + step) for step in range(3)] == ["a"] * 3
    assert turns.next("ab", 103.0) == "b"
    assert turns.next("ab", 103.0 + PAUSE_S / 2) == "b"
    assert turns.next("ab", 103.0 + PAUSE_S) == "a"
    assert turns.next("b", 103.0 + PAUSE_S) == "b"
