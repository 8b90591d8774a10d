from __future__ import annotations

from typing import Any

import pytest

from shared.jobs import Generation, Truncation
from worker.engine.overflow import FullContext, Shift, n_kept, n_shifted, truncated


def numbers(n: int) -> tuple[int, ...]:
    return tuple(range(n))


@pytest.mark.parametrize(
    ("n_ctx", "kept", "n_tokens", "gone"),
    [
        (2048, 5, 2048, 1021),
        (2048, 2047, 2048, 1),
        (2048, 0, 2048, 1024),
        (2048, 5, 5000, 3973),
        (2048, 2047, 5000, 2953),
        (2048, 5, 512, 0),
        (4096, 5, 4096, 2045),
        (128, 5, 128, 61),
        (8, 3, 8, 2),
        (2, 1, 2, 1),
    ],
)
def test_a_shift_frees_half_of_what_is_not_kept(n_ctx: int, kept: int, n_tokens: int, gone: int) -> None:
    assert n_shifted(n_ctx, kept, n_tokens) == gone


@pytest.mark.parametrize(("n_discard", "gone"), [(1, 1), (32, 32), (10**9, 95)])
def test_a_shift_of_a_given_size_takes_nothing_that_is_kept(n_discard: int, gone: int) -> None:
    assert n_shifted(100, 5, 100, n_discard) == gone
    assert n_shifted(100, 5, 99, n_discard) == 0


@pytest.mark.parametrize(
    ("n_tokens", "n_keep", "adds_bos", "left"),
    [
        (10, 3, False, (0, 1, 2, 5, 6, 7, 8, 9)),
        (10, 4, True, (0, 1, 2, 3, 4, 7, 8, 9)),
        (10, 0, False, (2, 3, 4, 5, 6, 7, 8, 9)),
        (10, -1, False, (0, 1, 2, 3, 4, 5, 6, 9)),
        (10, -1, True, (0, 1, 2, 3, 4, 5, 6, 9)),
        (10, 100, False, (0, 1, 2, 3, 4, 5, 6, 9)),
        (8, 4, True, numbers(8)),
    ],
)
def test_the_tail_is_left_by_the_runners_rule(
    n_tokens: int, n_keep: int, adds_bos: bool, left: tuple[int, ...]
) -> None:
    assert truncated(numbers(n_tokens), 8, n_keep, Truncation.TAIL, adds_bos=adds_bos) == left


def test_the_tail_of_a_long_prompt_begins_behind_what_is_kept() -> None:
    assert truncated(numbers(5000), 4096, 4, Truncation.TAIL, adds_bos=True) == (*range(5), *range(909, 5000))


@pytest.mark.parametrize(
    ("n_tokens", "n_keep", "left"),
    [
        (15, 0, numbers(15)),
        (16, 0, (*range(8, 16),)),
        (23, 0, (*range(8, 23),)),
        (24, 0, (*range(16, 24),)),
        (30, 4, (*range(4), *range(22, 30))),
        (30, 100, (*range(12), *range(28, 30))),
        (30, -1, (*range(12), *range(28, 30))),
    ],
)
def test_whole_blocks_go_by_the_servers_rule(n_tokens: int, n_keep: int, left: tuple[int, ...]) -> None:
    assert truncated(numbers(n_tokens), 16, n_keep, Truncation.BLOCKS, adds_bos=False) == left


@pytest.mark.parametrize("n_ctx", [2, 3, 4, 5, 9])
@pytest.mark.parametrize("n_keep", [-1, 0, 1, 5, 10**9])
@pytest.mark.parametrize("n_tokens", [1, 2, 4, 5, 9, 100])
def test_what_was_cut_fits_whatever_was_asked_for(n_ctx: int, n_keep: int, n_tokens: int) -> None:
    blocks = truncated(numbers(n_tokens), n_ctx, n_keep, Truncation.BLOCKS, adds_bos=False)
    assert 1 <= len(blocks) < n_ctx
    assert blocks[-1] == n_tokens - 1
    tail = truncated(numbers(n_tokens), n_ctx, n_keep, Truncation.TAIL, adds_bos=True)
    assert len(tail) == min(n_tokens, n_ctx)
    assert tail[-1] == n_tokens - 1


def test_a_token_can_always_go() -> None:
    assert n_kept(-1, 100, 8, adds_bos=True) == 7
    assert n_kept(0, 100, 8, adds_bos=True) == 1
    assert n_kept(5, 100, 8, adds_bos=False) == 5
    assert n_kept(10**9, 3, 8, adds_bos=False) == 7


@pytest.mark.parametrize("n_gone", [1, 3, 8])
@pytest.mark.parametrize("kept", [0, 2])
def test_what_is_left_of_all_tokens_is_what_shifting_one_by_one_leaves(kept: int, n_gone: int) -> None:
    n_ctx = 10
    shift = Shift(n_ctx, kept, n_gone)
    known: list[int] = []
    n_shifts = 0
    for token in range(60):
        if len(known) == n_ctx + 1:
            del known[kept : kept + n_gone]
            n_shifts += 1
        known.append(token)
        assert shift.left(numbers(token + 1)) == tuple(known)
        assert shift.n_left(token + 1) == len(known)
        assert shift.has_happened(token + 1) == (n_shifts > 0)


@pytest.mark.parametrize(
    ("rules", "asked", "n_gone"),
    [
        ({}, {}, None),
        ({}, {"shift": True}, 50),
        ({"shifts": True}, {}, 50),
        ({"shifts": True}, {"shift": False}, None),
        ({"shifts": True, "can_shift": False}, {"shift": True}, None),
        ({}, {"shift": True, "n_keep": 20}, 40),
        ({"adds_bos": True}, {"shift": True, "n_keep": 21}, 39),
        ({}, {"shift": True, "n_discard": 3}, 3),
        ({"is_moved": False}, {"shift": True, "n_discard": 3}, 50),
        ({"is_moved": False}, {"shift": True, "n_discard": 80}, 80),
    ],
)
def test_a_context_is_shifted_when_worker_and_request_agree(
    rules: dict[str, Any], asked: dict[str, Any], n_gone: int | None
) -> None:
    shift = FullContext(100, **rules).shift(Generation(**asked), 30)
    assert (shift and shift.n_gone) == n_gone


@pytest.mark.parametrize(
    ("rules", "shift", "n_most"),
    [
        ({}, False, 100),
        ({}, True, 1030),
        ({"shift_limit": 200}, True, 230),
        ({"shift_limit": 2}, True, 100),
        ({"shift_limit": 200}, False, 100),
    ],
)
def test_a_text_that_shifts_has_an_end_and_not_before_its_context_has(
    rules: dict[str, Any], shift: bool, n_most: int
) -> None:
    assert FullContext(100, **rules).n_most(Generation(shift=shift), 30) == n_most


@pytest.mark.parametrize(("asked", "n_ctx"), [(None, 100), (40, 40), (1, 4), (10**9, 100)])
def test_a_request_may_want_less_of_a_context_and_never_gets_more(asked: int | None, n_ctx: int) -> None:
    full = FullContext(100, shift_limit=0)
    assert full.n_most(Generation(n_ctx=asked), 3) == n_ctx
    shift = full.shift(Generation(n_ctx=asked, shift=True), 3)
    assert shift is not None and shift.n_ctx == n_ctx
    assert full.n_most(Generation(n_ctx=asked, shift=True), 3) == 3 + 10 * n_ctx
