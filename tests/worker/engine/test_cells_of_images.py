"""Cells of sequences with images: found again by what they show, and never cut where that cannot be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.engine.parts import buffer
from worker.engine.cells import Cells, Resident
from worker.engine.cells.spans import Span, Spans

N_IDS = 4


class Shape(NamedTuple):
    """Of each image: an id, and how it lies in the cache."""

    n_rows: int
    n_positions: int
    is_whole: bool


FLAT, JOINED, SQUARE = Shape(6, 6, False), Shape(6, 6, True), Shape(9, 3, True)
"""Rows that see those before them; that see each other; that lie in two dimensions."""


class Cell(NamedTuple):
    position: int
    token: int


COMMON = [1, -1, -2, 2, 1, -1, -1, 2, -2]
"""What prompts begin with."""


class CacheByPosition:
    """As llama.cpp has it: it knows where cells stand, and not how many tokens came before."""

    def __init__(self) -> None:
        self.cells: defaultdict[int, list[Cell]] = defaultdict(list)

    def truncate(self, seq_id: int, n_kept: int) -> bool:
        self.cells[seq_id] = [cell for cell in self.cells[seq_id] if cell.position < n_kept]
        return True

    def share(self, source: int, target: int, start: int, end: int) -> None:
        self.cells[target] += [cell for cell in self.cells[source] if start <= cell.position < end]

    def shift(self, seq_id: int, start: int, end: int) -> None:
        raise NotImplementedError

    def divide(self, seq_id: int, start: int, n: int) -> None:
        raise NotImplementedError


class Cached:
    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._cache = CacheByPosition()
        self.cells = Cells(self._cache, N_IDS, n_cells=400)

    def place(self, prompt: Sequence[int]) -> Resident:
        """A prompt has negative numbers for images."""
        tokens: list[int] = []
        spans: list[Span] = []
        for token in prompt:
            if token < 0:
                spans.append(Span(len(tokens), *self._shape))
            tokens += [token] * (self._shape.n_rows if token < 0 else 1)
        return self.cells.place(buffer(tokens), len(tokens), may_reuse=True, spans=Spans(spans))

    def compute(self, resident: Resident, n_tokens: int) -> None:
        """Up to the next token of another kind, as a decode does."""
        start = resident.n_cached
        n_tokens = min(n_tokens, resident.n_pending, resident.spans.n_alike(start))
        self._cache.cells[resident.seq_id] += list(self._expected(resident, start, start + n_tokens))
        self.cells.computed(resident, n_tokens)

    def finish(self, prompt: Sequence[int]) -> Resident:
        resident = self.place(prompt)
        while resident.n_pending:
            self.compute(resident, 100)
        self.cells.release(resident)
        return resident

    def check(self) -> None:
        """All that a resident says of itself is in the cache, where it belongs, and nothing else is."""
        by_id = {resident.seq_id: resident for resident in self.cells.residents}
        for seq_id in range(N_IDS):
            resident = by_id.get(seq_id, Resident())
            assert self._cache.cells[seq_id] == list(self._expected(resident, 0, resident.n_cached))

    def _expected(self, resident: Resident, start: int, end: int) -> Iterator[Cell]:
        for index in range(start, end):
            position = resident.spans.position(index)
            yield Cell(position, int(resident.tokens[index]))


@pytest.mark.parametrize(("shape", "n_kept"), [(FLAT, 7), (JOINED, 4), (SQUARE, 4)])
def test_a_cut_through_an_image_takes_all_of_it_unless_its_rows_count_like_tokens(shape: Shape, n_kept: int) -> None:
    cached = Cached(shape)
    resident = cached.finish([1, 2, 3, 4, -1, 5])
    cached.cells.cut(resident, 7)
    assert resident.n_cached == n_kept
    cached.check()


@pytest.mark.parametrize("shape", [FLAT, JOINED, SQUARE])
def test_the_same_image_is_lent_and_another_is_not(shape: Shape) -> None:
    cached = Cached(shape)
    cached.finish([1, 2, -1, 3, 4])
    assert cached.place([1, 2, -1, 3, 9]).n_reused == 3 + shape.n_rows
    assert cached.place([1, 2, -2, 3, 4]).n_reused == 2
    cached.check()


@pytest.mark.parametrize(("shape", "n_reused"), [(FLAT, 7), (JOINED, 2), (SQUARE, 2)])
def test_of_an_image_at_the_end_there_is_something_left_to_compute(shape: Shape, n_reused: int) -> None:
    cached = Cached(shape)
    cached.finish([1, 2, -1])
    assert cached.place([1, 2, -1]).n_reused == n_reused
    cached.check()


@pytest.mark.parametrize(("shape", "n_reused"), [(FLAT, 25), (JOINED, 20), (SQUARE, 20)])
def test_who_waits_for_an_image_at_the_end_waits_no_longer_than_it_helps(shape: Shape, n_reused: int) -> None:
    cached = Cached(shape)
    leader, follower = (cached.place([*range(1, 21), -1]) for _ in range(2))
    assert follower.leader is leader
    while leader.n_pending:
        cached.compute(leader, 4)
        cached.cells.catch_up(follower)
        cached.check()
    assert follower.leader is None
    assert follower.n_reused == n_reused


@settings(deadline=None)
@given(st.data(), st.sampled_from([FLAT, JOINED, SQUARE]))
def test_residents_with_images_are_always_what_the_cache_has(data: st.DataObject, shape: Shape) -> None:
    cached = Cached(shape)
    running: list[Resident] = []
    parked: list[Resident] = []
    beginnings = st.integers(1, len(COMMON)).map(lambda n: COMMON[:n])
    endings = st.lists(st.sampled_from([-2, -1, 1, 2]), max_size=2)
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["place", "compute", "release", "give up", "park", "resume", "evict", "fail"])):
            case "place" if len(running) < N_IDS:
                running.append(cached.place([*data.draw(beginnings), *data.draw(endings)]))
                assert running[-1].n_pending >= 1
            case "compute":
                for resident in running:
                    cached.cells.catch_up(resident)
                    if resident.leader is None and resident.n_pending:
                        cached.compute(resident, data.draw(st.integers(1, resident.n_pending)))
            case "release" if running:
                cached.cells.release(running.pop(data.draw(st.integers(0, len(running) - 1))))
            case "give up":
                cached.cells.give_up_idle(data.draw(st.integers(1, 100)))
            case "park" if running:
                parked.append(running.pop(0))
                cached.cells.park(parked[-1])
            case "resume" if parked and len(running) < N_IDS:
                running.append(parked.pop(0))
                cached.cells.resume(running[-1])
            case "evict" if parked:
                cached.cells.shorten(parked[-1], data.draw(st.integers(1, 20)))
            case "fail" if running:
                cached.cells.restore(running[0])
        cached.check()
