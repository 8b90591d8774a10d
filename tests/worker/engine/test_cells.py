from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.engine.parts import ScriptedCache, buffer
from worker.engine.cells import MIN_SHARED, Cells, Resident

N_CELLS = 400


class Slots:
    """Cells over a scripted cache, with sequences that are computed at once."""

    def __init__(
        self, n_slots: int = 3, n_shelves: int = 0, *, can_rewind: bool = True, can_shift: bool = True
    ) -> None:
        self.cache = ScriptedCache(can_rewind, n_slots + n_shelves)
        self.cells = Cells(self.cache, n_slots, n_shelves, n_cells=N_CELLS, can_rewind=can_rewind, can_shift=can_shift)

    def place(self, tokens: Sequence[int], *, may_reuse: bool = True, is_patient: bool = False) -> Resident:
        resident = self.cells.place(buffer(tokens), len(tokens), may_reuse=may_reuse, is_patient=is_patient)
        assert resident is not None
        return resident

    def unshelve(self, shelf: Resident, *, may_reuse: bool = True) -> Resident:
        resident = self.cells.unshelve(shelf, may_reuse=may_reuse)
        assert resident is not None
        return resident

    def compute(self, resident: Resident, n_tokens: int | None = None) -> None:
        before = resident.n_cached
        self.cells.computed(resident, resident.n_pending if n_tokens is None else n_tokens)
        self.cache.compute(resident.slot, resident.tokens[before : resident.n_cached].tolist())

    def check(self) -> None:
        """The books are what the cache has."""
        for resident in (*self.cells.residents, *self.cells.shelved):
            in_cache = self.cache.cells.get(resident.slot, [])
            assert [cell.token for cell in in_cache] == resident.tokens[: resident.n_cached].tolist()
            for at, cell in enumerate(in_cache[: resident.n_pure]):
                assert cell.behind == tuple(resident.tokens[:at].tolist())
            assert self.cells._account.length(resident.slot) == resident.n_cached
            assert resident.n_reused <= resident.n_cached or not resident.is_busy

    def is_following(self, resident: Resident) -> bool:
        return resident.leader is not None

    def finish(self, tokens: Sequence[int], **more: bool) -> Resident:
        resident = self.place(tokens, **more)
        self.compute(resident)
        self.cells.release(resident)
        return resident


A, B = list(range(100, 160)), list(range(300, 360))


def test_the_same_prompt_again_computes_one_token() -> None:
    slots = Slots()
    first = slots.finish(A)
    again = slots.place(A)
    assert (again.slot, again.n_reused, again.n_pending) == (first.slot, len(A) - 1, 1)


def test_the_best_prefix_wins_and_its_rest_is_cut_off() -> None:
    slots = Slots()
    slots.finish([*A[:20], *B])
    best = slots.finish([*A[:50], *B])
    placed = slots.place([*A, 7])
    assert (placed.slot, placed.n_reused) == (best.slot, 50)
    assert slots.cache.lengths[best.slot] == 50


def test_without_a_prefix_the_least_recently_used_slot_goes() -> None:
    slots = Slots(2)
    first, second = slots.finish(A), slots.finish(B)
    assert slots.finish([1, 2, 3]).slot == first.slot
    assert slots.finish([4, 5, 6]).slot == second.slot


def test_a_busy_sequence_lends_its_prefix() -> None:
    slots = Slots()
    lender = slots.place([*A, 1])
    slots.compute(lender)
    placed = slots.place([*A, 2])
    assert (placed.n_reused, placed.n_pending) == (len(A), 1)
    assert slots.cache.shared == [(lender.slot, placed.slot, 0, len(A))]


def test_cache_prompt_off_reuses_nothing() -> None:
    slots = Slots()
    slots.finish(A)
    assert slots.place(A, may_reuse=False).n_reused == 0


def test_there_is_no_slot_when_all_are_busy() -> None:
    slots = Slots(1)
    slots.place(A)
    assert slots.cells.place(buffer(B), len(B), may_reuse=True) is None


def test_a_prefix_that_is_being_computed_is_waited_for() -> None:
    slots = Slots()
    leader, follower = slots.place([*A, 1]), slots.place([*A, 2])
    assert follower.leader is leader
    slots.compute(leader, 40)
    slots.cells.catch_up(follower)
    assert (follower.n_cached, follower.leader) == (40, leader)
    slots.compute(leader)
    slots.cells.catch_up(follower)
    assert follower.n_cached == follower.n_reused == len(A)
    assert not slots.is_following(follower)


def test_a_short_common_beginning_is_not_waited_for() -> None:
    slots = Slots()
    slots.place([*A[: MIN_SHARED - 1], *B])
    assert slots.place(A).leader is None


@pytest.mark.parametrize("is_slot_taken", [False, True])
def test_a_follower_goes_on_alone_when_its_leader_ends(is_slot_taken: bool) -> None:
    slots = Slots(2)
    leader, follower = slots.place([*A, 1]), slots.place([*A, 2])
    slots.compute(leader, 30)
    slots.cells.release(leader)
    if is_slot_taken:
        assert slots.place(B) is leader
    slots.cells.catch_up(follower)
    assert follower.leader is None
    assert follower.n_cached == (0 if is_slot_taken else 30)


def test_a_state_that_cannot_lose_its_end_is_reused_whole_or_not() -> None:
    slots = Slots(2, can_rewind=False)
    resident = slots.finish(A)
    longer = slots.place([*A, 7])
    assert (longer.slot, longer.n_reused) == (resident.slot, len(A))
    slots.compute(longer)
    slots.cells.release(longer)
    assert slots.place(A).n_reused == 0


def test_idle_residents_go_oldest_first_and_busy_ones_stay() -> None:
    slots = Slots()
    first, second = slots.finish(A), slots.finish(B)
    busy = slots.place([9, 9, 9])
    slots.compute(busy)
    assert slots.cells.drop_oldest_idle()
    assert (first.n_cached, second.n_cached) == (0, len(B))
    assert slots.cells.drop_oldest_idle()
    assert not slots.cells.drop_oldest_idle()
    assert busy.n_cached == 3


@pytest.mark.parametrize("may_reuse", [True, False])
def test_a_shelved_sequence_keeps_its_cells_while_another_has_its_slot(may_reuse: bool) -> None:
    slots = Slots(1, 1)
    first = slots.place(A)
    slots.compute(first, 40)
    shelf = slots.cells.shelve(first)
    other = slots.place(B)
    slots.compute(other)
    assert slots.cells.unshelve(shelf, may_reuse=may_reuse) is None
    slots.cells.release(other)
    again = slots.unshelve(shelf, may_reuse=may_reuse)
    assert (again.tokens[: again.n_tokens].tolist(), again.n_cached, again.n_reused) == (A, 40, 0)
    assert slots.cache.lengths == {0: 40, 1: 0}


def test_a_shelved_sequence_lends_its_prefix() -> None:
    slots = Slots(1, 1)
    first = slots.place(A)
    slots.compute(first)
    slots.cells.shelve(first)
    slots.finish(B)
    assert slots.place([*A, 7]).n_reused == len(A)


def test_cells_on_shelves_go_last_and_then_all_is_computed_again() -> None:
    slots = Slots(2, 1)
    first = slots.place(A)
    slots.compute(first)
    shelf = slots.cells.shelve(first)
    finished = slots.finish(B)
    other = slots.finish([5] * 20)
    assert slots.cells.drop_oldest_idle()
    assert slots.cells.drop_oldest_idle()
    assert (finished.n_cached, other.n_cached, shelf.n_cached) == (0, 0, len(A))
    assert slots.cells.drop_oldest_idle()
    again = slots.unshelve(shelf)
    assert (again.n_cached, again.n_pending) == (0, len(A))


def test_without_an_empty_shelf_only_the_tokens_stay() -> None:
    slots = Slots(1)
    first = slots.place(A)
    slots.compute(first, 40)
    shelf = slots.cells.shelve(first)
    slots.finish(B)
    again = slots.unshelve(shelf)
    assert (again.tokens[: again.n_tokens].tolist(), again.n_cached) == (A, 0)


def test_nobody_waits_for_one_who_may_be_held_up_unless_he_may_be_too() -> None:
    slots = Slots()
    leader = slots.place([*A, 1], is_patient=True)
    assert slots.place([*A, 2]).leader is None
    assert slots.place([*A, 3], is_patient=True).leader is not None
    assert leader.n_cached == 0


def test_cells_are_made_private_by_taking_them_from_the_idle_and_never_from_the_busy() -> None:
    slots = Slots(4, 1)
    first, second, third = (slots.place([*A[:n], 1, at]) for at, n in enumerate((60, 60, 50)))
    slots.compute(first)
    for follower in (second, third):
        slots.cells.catch_up(follower)
        slots.compute(follower)
    slots.cells.release(first)
    assert slots.cells.is_private(second, 61, 62)
    assert not slots.cells.own(second, 40, 62)
    assert first.n_cached == 62
    slots.cells.release(third)
    assert slots.cells.own(second, 40, 62)
    assert slots.cells.is_private(second, 40, 62)
    assert (first.n_cached, second.n_cached, third.n_cached) == (40, 62, 40)
    assert slots.cells.n_free == N_CELLS - 62


def test_what_is_cut_is_pending_again() -> None:
    slots = Slots()
    resident = slots.place(A)
    slots.compute(resident)
    slots.cells.cut(resident, 15)
    assert (resident.n_pending, slots.cells.n_free) == (45, N_CELLS - 15)


def test_a_shift_closes_the_gap_and_lends_no_more_than_what_is_before_it() -> None:
    slots = Slots()
    resident = slots.place(A)
    slots.compute(resident)
    slots.cells.shift(resident, 10, 20)
    assert resident.tokens[: resident.n_tokens].tolist() == A[:10] + A[30:]
    assert (resident.n_cached, slots.cells.n_free) == (40, N_CELLS - 40)
    assert slots.cache.shifted == [(resident.slot, 10, 30)]
    assert slots.place([*A[:10], *A[30:], 7]).n_reused == 10


def test_a_shift_among_cells_that_a_busy_one_has_drops_them_and_moves_nothing() -> None:
    slots = Slots()
    first = slots.place(A)
    slots.compute(first)
    second = slots.place([*A, 7])
    slots.compute(second)
    slots.cells.shift(second, 10, 20)
    assert slots.cache.shifted == []
    assert (second.n_cached, second.n_tokens, first.n_cached) == (10, 41, 60)
    slots.compute(second)
    slots.cells.release(first)
    assert slots.place([*A[:10], *A[30:], 7, 8]).n_reused == 41


def test_a_parked_sequence_shifts_without_its_old_slot() -> None:
    slots = Slots(2, 1)
    resident = slots.place([*A, 7])
    slots.compute(resident, 60)
    again = slots.unshelve(slots.cells.shelve(resident))
    assert again is not resident
    slots.cells.shift(again, 0, 30)
    assert slots.cache.shifted == [(again.slot, 0, 30)]
    assert resident.tokens[: resident.n_cached].tolist() == A[:30]


@pytest.mark.parametrize("kind", ["rewind", "shift"])
def test_where_cells_cannot_be_moved_what_is_left_is_computed_again(kind: str) -> None:
    slots = Slots(can_rewind=kind != "rewind", can_shift=False)
    resident = slots.place(A)
    slots.compute(resident)
    slots.cells.shift(resident, 10, 20)
    assert slots.cache.shifted == []
    assert (resident.n_cached, resident.n_tokens) == (0 if kind == "rewind" else 10, 40)


@settings(deadline=None)
@given(st.data())
def test_residents_are_always_what_the_cache_has(data: st.DataObject) -> None:
    slots = Slots(3, 2)
    busy: list[Resident] = []
    shelved: list[Resident] = []
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(
            st.sampled_from(["place", "compute", "release", "drop", "shelve", "unshelve", "clear", "shift"])
        ):
            case "place" if slots.cells.n_idle:
                n = data.draw(st.integers(1, len(A)))
                tokens = [*A[:n], *data.draw(st.lists(st.integers(0, 3), max_size=4))]
                busy.append(slots.place(tokens, may_reuse=data.draw(st.booleans())))
                assert busy[-1].n_pending >= 1
            case "compute":
                for resident in busy:
                    slots.cells.catch_up(resident)
                    if resident.leader is None and resident.n_pending:
                        slots.compute(resident, data.draw(st.integers(1, resident.n_pending)))
            case "release" if busy:
                slots.cells.release(busy.pop(data.draw(st.integers(0, len(busy) - 1))))
            case "drop":
                slots.cells.drop_oldest_idle()
            case "shelve" if busy:
                pending = [resident for resident in busy if resident.n_pending]
                if pending:
                    busy.remove(pending[0])
                    shelved.append(slots.cells.shelve(pending[0]))
            case "unshelve" if shelved and slots.cells.n_idle:
                busy.append(slots.unshelve(shelved.pop(0), may_reuse=data.draw(st.booleans())))
                assert busy[-1].n_pending >= 1
            case "clear" if shelved:
                slots.cells.clear(shelved.pop())
            case "shift" if full := [resident for resident in busy if resident.n_pending == 1 and resident.n_cached]:
                n_kept = data.draw(st.integers(0, full[0].n_cached - 1))
                slots.cells.shift(full[0], n_kept, data.draw(st.integers(1, full[0].n_cached - n_kept)))
                assert full[0].n_pending >= 1
        slots.check()
