from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.engine.parts import ScriptedCache, buffer
from worker.engine.cells.cells import LEAST_CUT, MIN_SHARED, Cells, Resident, Standing, _common
from worker.engine.cells.resident import NOWHERE

N_CELLS = 400


class Cached:
    """Cells over a scripted cache, with sequences that are computed at once."""

    def __init__(self, n_ids: int = 3, *, can_rewind: bool = True, can_shift: bool = True) -> None:
        self.cache = ScriptedCache(can_rewind, n_ids)
        self.cells = Cells(self.cache, n_ids, n_cells=N_CELLS, can_rewind=can_rewind, can_shift=can_shift)

    def place(self, tokens: Sequence[int], *, may_reuse: bool = True, is_patient: bool = False) -> Resident:
        return self.cells.place(buffer(tokens), len(tokens), may_reuse=may_reuse, is_patient=is_patient)

    def compute(self, resident: Resident, n_tokens: int | None = None) -> None:
        before = resident.n_cached
        self.cells.computed(resident, resident.n_pending if n_tokens is None else n_tokens)
        self.cache.compute(resident.seq_id, resident.tokens[before : resident.n_cached].tolist())

    def check(self) -> None:
        """The books are what the cache has."""
        by_id = {resident.seq_id: resident for resident in self.cells.residents}
        assert len(by_id) == len(self.cells.residents)
        for seq_id in range(self.cache.n_ids):
            resident, in_cache = by_id.get(seq_id, Resident()), self.cache.cells.get(seq_id, [])
            assert [cell.token for cell in in_cache] == resident.tokens[: resident.n_cached].tolist()
            for at, cell in enumerate(in_cache[: resident.n_pure]):
                assert cell.behind == tuple(resident.tokens[:at].tolist())
            assert self.cells._account.length(seq_id) == resident.n_cached
            assert max(resident.n_reused, resident.n_lent) <= resident.n_cached <= resident.n_tokens

    def run(self, tokens: Sequence[int], **more: bool) -> Resident:
        resident = self.place(tokens, **more)
        self.compute(resident)
        return resident

    def finish(self, tokens: Sequence[int], **more: bool) -> Resident:
        resident = self.run(tokens, **more)
        self.cells.release(resident)
        return resident

    def is_following(self, resident: Resident) -> bool:
        return resident.leader is not None

    def give_up(self) -> None:
        while self.cells.give_up_idle(1000):
            pass


A, B = list(range(100, 160)), list(range(300, 360))


def test_the_same_prompt_again_computes_one_token() -> None:
    cached = Cached()
    cached.finish([*A, 1, 2])
    again = cached.place(A)
    assert (again.n_reused, again.n_pending) == (len(A) - 1, 1)


def test_what_goes_on_as_a_whole_takes_the_place_of_what_was_there() -> None:
    cached = Cached()
    first = cached.finish(A)
    seq_id = first.seq_id
    longer = cached.place([*A, 7])
    assert (longer.seq_id, longer.n_reused, cached.cells.residents) == (seq_id, len(A), [longer])
    assert (first.seq_id, first.n_cached) == (NOWHERE, 0)


def test_what_branches_off_leaves_alone_what_was_there() -> None:
    cached = Cached()
    cached.finish([*A[:20], *B])
    best = cached.finish([*A[:50], *B])
    placed = cached.place([*A, 7])
    assert (placed.n_reused, best.n_cached) == (50, 50 + len(B))
    assert cached.cache.shared[-1] == (best.seq_id, placed.seq_id, 0, 50)


def test_without_another_id_the_place_of_the_source_is_taken_and_its_rest_cut_off() -> None:
    cached = Cached(1)
    first = cached.finish([*A[:50], *B])
    placed = cached.place([*A, 7])
    assert (placed.n_reused, cached.cache.lengths[0], first.seq_id) == (50, 50, NOWHERE)


@pytest.mark.parametrize(
    ("left", "right", "n_common"),
    [([1, 2, 3], [1, 2, 3], 3), ([1], [1, 2, 3], 1), ([], [1, 2, 3], 0), ([], [], 0), ([1, 5], [1, 6], 1)],
)
def test_common_beginnings_are_counted_as_in_llamarunner(left: list[int], right: list[int], n_common: int) -> None:
    assert _common(np.array(left, dtype=np.int32), np.array(right, dtype=np.int32)) == n_common


@pytest.mark.parametrize(
    ("first", "is_running", "second", "prompt", "n_reused"),
    [
        ([], False, [], [1], 0),
        ([1], False, [1, 2], [1, 2], 1),
        ([1, 2], False, [], [2], 0),
        ([1, 2], False, [], [1, 9], 1),
        ([1], False, [1, 2], [2, 3], 0),
        ([1, 2], True, [1], [1, 2, 9], 2),
        ([1, 2], False, [], [1, 2, 3], 2),
        ([1, 2, 3], False, [4], [1, 2, 9], 2),
    ],
    ids=["empty", "extend", "new", "fork", "evict", "in use", "hit", "both the best and the oldest"],
)
def test_as_much_is_reused_as_in_llamarunner_but_nothing_is_overwritten_for_it(
    first: list[int], is_running: bool, second: list[int], prompt: list[int], n_reused: int
) -> None:
    """Its cases for several users. It evicts the least recently used slot even where another has nothing, and goes on
    in the slot that has the prefix if that is the oldest; here there are more places than slots, so all stays. It
    leaves the last token of a prompt to compute only afterwards, so that its numbers are one more for whole prompts.
    That all slots are taken is an error there; here a task waits."""
    cached = Cached(4)
    there = [cached.run(tokens) for tokens in (first, second) if tokens]
    for at, resident in enumerate(there):
        if at or not is_running:
            cached.cells.release(resident)
    before = [(each.seq_id, each.n_cached) for each in there]
    placed = cached.run(prompt)
    assert placed.n_reused == n_reused
    assert placed.standing is Standing.RUNNING
    after = [(each.seq_id, each.n_cached) for each in there if each.seq_id != NOWHERE]
    assert after == [each for each in before if each[0] != placed.seq_id]
    cached.check()


def test_when_ids_run_out_the_least_recently_used_goes_and_then_who_was_parked_last() -> None:
    cached = Cached(3)
    first, second = cached.run(A), cached.run(B)
    third = cached.finish([1, 2, 3])
    cached.cells.park(first)
    cached.cells.park(second)
    cached.run([4, 5, 6])
    assert (third.seq_id, first.n_cached, second.n_cached) == (NOWHERE, len(A), len(B))
    cached.run([7, 8, 9])
    assert (first.n_cached, second.n_cached, second.seq_id) == (len(A), 0, NOWHERE)


def test_a_running_sequence_lends_its_prefix() -> None:
    cached = Cached()
    lender = cached.run([*A, 1])
    placed = cached.place([*A, 2])
    assert (placed.n_reused, placed.n_pending) == (len(A), 1)
    assert cached.cache.shared == [(lender.seq_id, placed.seq_id, 0, len(A))]


def test_cache_prompt_off_neither_takes_nor_waits() -> None:
    cached = Cached(4)
    cached.finish(A)
    cached.place([*B, 1])
    assert cached.place(A, may_reuse=False).n_reused == 0
    assert not cached.is_following(cached.place([*B, 2], may_reuse=False))


def test_a_prefix_that_is_being_computed_is_waited_for() -> None:
    cached = Cached()
    leader, follower = cached.place([*A, 1]), cached.place([*A, 2])
    assert (follower.leader, follower.n_pending, follower.n_to_compute) == (leader, 61, 1)
    cached.compute(leader, 40)
    cached.cells.catch_up(follower)
    assert (follower.n_cached, follower.leader) == (40, leader)
    cached.compute(leader)
    cached.cells.catch_up(follower)
    assert follower.n_cached == follower.n_reused == len(A)
    assert not cached.is_following(follower)


def test_a_short_common_beginning_is_not_waited_for() -> None:
    cached = Cached()
    cached.place([*A[: MIN_SHARED - 1], *B])
    assert cached.place(A).leader is None


@pytest.mark.parametrize("how", ["ended", "parked", "evicted"])
def test_a_follower_goes_on_alone_when_its_leader_does_not(how: str) -> None:
    cached = Cached(2)
    leader, follower = cached.place([*A, 1]), cached.place([*A, 2])
    cached.compute(leader, 30)
    if how == "ended":
        cached.cells.release(leader)
    else:
        cached.cells.park(leader)
    if how == "evicted":
        cached.cells.evict(leader)
    cached.cells.catch_up(follower)
    assert follower.leader is None
    assert follower.n_cached == (0 if how == "evicted" else 30)


@pytest.mark.parametrize("standing", list(Standing))
def test_a_state_that_cannot_lose_its_end_is_copied_whole_or_not_at_all(standing: Standing) -> None:
    cached = Cached(4, can_rewind=False)
    resident = cached.run(A)
    match standing:
        case Standing.PARKED:
            cached.cells.park(resident)
        case Standing.IDLE:
            cached.cells.release(resident)
    longer = cached.run([*A, 7])
    assert (longer.n_reused, resident.n_cached) == (len(A), len(A))
    assert cached.place([*A[:50], 7]).n_reused == 0


def test_a_state_goes_on_in_its_place_when_no_id_lies_about() -> None:
    cached = Cached(2, can_rewind=False)
    other, resident = cached.finish(B), cached.finish(A)
    longer = cached.place([*A, 7])
    assert (longer.n_reused, resident.seq_id, other.n_cached) == (len(A), NOWHERE, len(B))


def test_cells_of_the_idle_go_oldest_first_and_from_the_end_and_others_stay() -> None:
    cached = Cached(4)
    first, second = cached.finish(range(100, 200)), cached.finish(B)
    running = cached.run([9, 9, 9])
    assert cached.cells.give_up_idle(10)
    assert (first.n_cached, second.n_cached) == (100 - LEAST_CUT, len(B))
    assert cached.cells.n_free == N_CELLS - 36 - 60 - 3
    cached.give_up()
    assert (first.seq_id, second.seq_id, running.n_cached) == (NOWHERE, NOWHERE, 3)
    assert cached.cells.n_free == N_CELLS - 3


def test_a_prefix_that_was_lent_outlasts_what_nobody_asked_for_and_one_holder_is_enough() -> None:
    cached = Cached(10)
    for end in range(4):
        cached.finish([*A, *[end] * 5])
    others = [cached.finish([at] * 30) for at in range(3)]
    assert cached.cells.n_free == N_CELLS - 60 - 4 * 5 - 3 * 30
    while cached.cells.n_free < N_CELLS - 60:
        assert cached.cells.give_up_idle(1)
    (holder,) = cached.cells.residents
    assert holder.known[:60].tolist() == A
    assert (holder.n_cached, [other.n_cached for other in others]) == (60, [0, 0, 0])


def test_of_two_lent_prefixes_the_one_that_was_lent_last_stays_longer() -> None:
    cached = Cached(10)
    for at, tokens in enumerate((A, B, A)):
        cached.finish([*tokens, 2 * at])
        cached.finish([*tokens, 2 * at + 1])
    while cached.cells.n_free < N_CELLS - 60:
        assert cached.cells.give_up_idle(1)
    assert {tuple(each.known[:60].tolist()) for each in cached.cells.residents} == {tuple(A)}


def test_a_state_loses_all_even_where_its_cache_would_drop_only_the_end() -> None:
    cached = Cached()
    cached.cells = Cells(cached.cache, 3, n_cells=N_CELLS, can_rewind=False)
    resident = cached.run(A)
    cached.cells.cut(resident, 30)
    assert (resident.n_cached, cached.cache.lengths[resident.seq_id]) == (0, 0)


def test_a_parked_sequence_keeps_its_cells_and_lends_them() -> None:
    cached = Cached(2)
    first = cached.place(A)
    cached.compute(first, 40)
    cached.cells.park(first)
    assert cached.run([*A[:30], *B]).n_reused == 30
    cached.cells.resume(first)
    assert (first.known.tolist(), first.n_cached, first.n_reused) == (A, 40, 0)


@pytest.mark.parametrize("may_reuse", [True, False])
def test_a_parked_sequence_that_lost_its_end_takes_it_from_others_who_have_it(may_reuse: bool) -> None:
    cached = Cached(2)
    first = cached.run(range(100, 200), may_reuse=may_reuse)
    first.append(7)
    cached.cells.park(first)
    cached.run([*range(100, 200), 8], may_reuse=False)
    cached.cells.shorten(first, 1)
    cached.cells.resume(first)
    assert (first.n_cached, first.n_reused) == ((100, 64) if may_reuse else (36, 0))


def test_nobody_waits_for_one_who_may_be_held_up_unless_he_may_be_too() -> None:
    cached = Cached()
    leader = cached.place([*A, 1], is_patient=True)
    assert cached.place([*A, 2]).leader is None
    assert cached.place([*A, 3], is_patient=True).leader is not None
    assert leader.n_cached == 0


def test_cells_within_reach_are_those_that_no_holder_has_each_counted_once() -> None:
    cached = Cached(4)
    first, second = cached.run([*A, 1]), cached.run([*A, 2])
    idle = cached.finish(B)
    prefix = cached.cells.prefix(buffer([*B, 1])[:61])
    assert (prefix.source, prefix.n_tokens) == (idle, len(B))
    assert cached.cells.n_within_reach([first, second], prefix) == N_CELLS - 62 - 60
    assert cached.cells.n_within_reach([first], prefix._replace(n_cached=10)) == N_CELLS - 61 - 10


def test_cells_are_made_private_by_taking_them_from_the_idle_and_never_from_the_busy() -> None:
    cached = Cached(4)
    first, second, third = (cached.place([*A[:n], 1, at]) for at, n in enumerate((60, 60, 50)))
    cached.compute(first)
    for follower in (second, third):
        cached.cells.catch_up(follower)
        cached.compute(follower)
    cached.cells.release(first)
    assert not cached.cells.own(second, 40, 62)
    assert first.n_cached == 62
    cached.cells.release(third)
    assert cached.cells.own(second, 40, 62)
    assert (first.n_cached, second.n_cached, third.n_cached) == (40, 62, 40)
    assert cached.cells.n_free == N_CELLS - 62


def test_what_is_cut_is_pending_again() -> None:
    cached = Cached()
    resident = cached.run(A)
    cached.cells.cut(resident, 15)
    assert (resident.n_pending, cached.cells.n_free) == (45, N_CELLS - 15)


def test_a_shift_closes_the_gap_and_lends_no_more_than_what_is_before_it() -> None:
    cached = Cached()
    resident = cached.run(A)
    cached.cells.shift(resident, 10, 20)
    assert resident.known.tolist() == A[:10] + A[30:]
    assert (resident.n_cached, cached.cells.n_free) == (40, N_CELLS - 40)
    assert cached.cache.shifted == [(resident.seq_id, 10, 30)]
    assert cached.place([*A[:10], *A[30:], 7]).n_reused == 10


def test_a_shift_among_cells_that_a_running_one_has_drops_them_and_moves_nothing() -> None:
    cached = Cached()
    first, second = cached.run(A), cached.run([*A, 7])
    cached.cells.shift(second, 10, 20)
    assert cached.cache.shifted == []
    assert (second.n_cached, second.n_tokens, first.n_cached) == (10, 41, 60)
    cached.compute(second)
    assert cached.place([*A[:10], *A[30:], 7, 8]).n_reused == 41


def test_what_was_shifted_goes_on_after_parking_with_its_own_cells_alone() -> None:
    cached = Cached(3)
    resident = cached.run([*A, 7])
    cached.cells.shift(resident, 10, 20)
    resident.append(8)
    cached.cells.park(resident)
    cached.run([*resident.known.tolist(), 9])
    cached.cells.resume(resident)
    assert (resident.n_cached, resident.n_pending, resident.leader) == (41, 1, None)
    cached.check()


@pytest.mark.parametrize("kind", ["rewind", "shift"])
def test_where_cells_cannot_be_moved_what_is_left_is_computed_again(kind: str) -> None:
    cached = Cached(can_rewind=kind != "rewind", can_shift=False)
    resident = cached.run(A)
    cached.cells.shift(resident, 10, 20)
    assert cached.cache.shifted == []
    assert (resident.n_cached, resident.n_tokens) == (0 if kind == "rewind" else 10, 40)


@settings(deadline=None)
@given(st.data(), st.booleans())
def test_residents_are_always_what_the_cache_has(data: st.DataObject, can_rewind: bool) -> None:
    cached = Cached(4, can_rewind=can_rewind)
    running: list[Resident] = []
    parked: list[Resident] = []
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(
            st.sampled_from(["place", "compute", "release", "give up", "park", "resume", "evict", "shift"])
        ):
            case "place" if len(running) < 4:
                n = data.draw(st.integers(1, len(A)))
                tokens = [*A[:n], *data.draw(st.lists(st.integers(0, 3), max_size=4))]
                running.append(cached.place(tokens, may_reuse=data.draw(st.booleans())))
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
            case "park" if pending := [resident for resident in running if resident.n_pending]:
                running.remove(pending[0])
                parked.append(pending[0])
                cached.cells.park(pending[0])
            case "resume" if parked and len(running) < 4:
                running.append(parked.pop(0))
                cached.cells.resume(running[-1])
                assert running[-1].n_pending >= 1
            case "evict" if parked:
                cached.cells.evict(parked[-1])
            case "shift" if full := [each for each in running if each.n_pending == 1 and each.n_cached]:
                n_kept = data.draw(st.integers(0, full[0].n_cached - 1))
                cached.cells.shift(full[0], n_kept, data.draw(st.integers(1, full[0].n_cached - n_kept)))
                assert full[0].n_pending >= 1
        assert set(running) <= set(cached.cells.residents)
        cached.check()


@pytest.mark.parametrize("can_shift", [True, False])
def test_who_shifts_waits_no_more_for_a_prefix_of_what_it_was(can_shift: bool) -> None:
    cached = Cached(can_shift=can_shift)
    leader = cached.place([*A, 1])
    cached.compute(leader, 20)
    follower = cached.place([*A, 2])
    assert cached.is_following(follower)
    cached.cells.shift(follower, 5, 20)
    cached.compute(leader)
    cached.cells.catch_up(follower)
    assert follower.known.tolist() == [*A[:5], *A[25:], 2]
    cached.check()
    cached.compute(follower)
    cached.check()
