"""Positions and cuts of a sequence with images."""

from __future__ import annotations

import pytest

from worker.engine.cells.spans import NO_SPANS, Span, Spans

FLAT = Spans([Span(3, 4, 4, False), Span(7, 2, 2, False)])
"""Rows that count like tokens, two images next to each other."""
SQUARE = Spans([Span(2, 9, 3, True), Span(11, 4, 2, True), Span(20, 6, 3, True)])
"""Rows in two dimensions."""


@pytest.mark.parametrize(("index", "n_alike"), [(0, 3), (2, 1), (3, 4), (6, 1), (7, 2), (8, 1)])
def test_tokens_of_one_kind_end_where_an_image_begins_or_ends(index: int, n_alike: int) -> None:
    assert FLAT.n_alike(index) == n_alike
    assert FLAT.n_alike(9) > 10**9


def test_images_are_found_by_their_rows() -> None:
    assert [FLAT.at(index) is not None for index in range(10)] == [False] * 3 + [True] * 6 + [False]
    assert FLAT.at(6) != FLAT.at(7)


def test_rows_that_count_like_tokens_change_no_position_and_can_be_cut() -> None:
    assert [FLAT.position(n) for n in range(12)] == list(range(12))
    assert [FLAT.floor(n) for n in range(12)] == list(range(12))


def test_rows_in_two_dimensions_take_fewer_positions() -> None:
    positions = {0: 0, 1: 1, 2: 2, 11: 5, 15: 7, 16: 8, 20: 12, 26: 15, 30: 19}
    assert {n_tokens: SQUARE.position(n_tokens) for n_tokens in positions} == positions


def test_an_image_in_two_dimensions_is_kept_whole_or_not_at_all() -> None:
    assert [SQUARE.floor(n) for n in range(17)] == [0, 1, *[2] * 9, *[11] * 4, 15, 16]
    assert [SQUARE.position(n) for n in range(2, 11)] == [2] * 9, "its rows begin where it does"


def test_without_images_there_is_nothing_to_it() -> None:
    assert not NO_SPANS
    assert (NO_SPANS.position(7), NO_SPANS.floor(7), NO_SPANS.at(7)) == (7, 7, None)
