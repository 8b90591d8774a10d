"""The account of cells, beside a naive model of the cache and beside llama.cpp's own."""

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.cells.account import Account
from worker.engine.llama import Context, ContextParams, Decoded, Model, OutOfCells, Piece

N_SEQUENCES, N_CELLS = 3, 24


class NaiveCache:
    """As llama.cpp does it: cells, each with a position and the sequences that have it."""

    def __init__(self) -> None:
        self.cells: list[tuple[int, set[int]]] = [(-1, set()) for _ in range(N_CELLS)]

    @property
    def n_free(self) -> int:
        return sum(not owners for _, owners in self.cells)

    def length(self, seq_id: int) -> int:
        return sum(seq_id in owners for _, owners in self.cells)

    def at(self, seq_id: int, start: int, end: int) -> list[set[int]]:
        return [owners for position, owners in self.cells if seq_id in owners and start <= position < end]

    def take(self, seq_id: int, n: int) -> None:
        free = [at for at, (_, owners) in enumerate(self.cells) if not owners]
        for position, at in enumerate(free[:n], self.length(seq_id)):
            self.cells[at] = (position, {seq_id})

    def share(self, source: int, target: int, start: int, end: int) -> None:
        for owners in self.at(source, start, end):
            owners.add(target)

    def remove(self, seq_id: int, start: int, end: int) -> None:
        for owners in self.at(seq_id, start, end):
            owners.remove(seq_id)

    def move(self, seq_id: int, start: int, by: int) -> None:
        for at, (position, owners) in enumerate(self.cells):
            if seq_id in owners and position >= start:
                self.cells[at] = (position + by, owners)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_account_is_what_a_naive_cache_counts(data: st.DataObject) -> None:
    account, cache = Account(N_CELLS, N_SEQUENCES), NaiveCache()
    for _ in range(data.draw(st.integers(1, 20))):
        seq_id, other = data.draw(st.permutations(range(N_SEQUENCES)))[:2]
        length = cache.length(seq_id)
        match data.draw(st.sampled_from(["take", "share", "cut", "close_gap"])):
            case "take":
                n = data.draw(st.integers(0, cache.n_free))
                account.take(seq_id, n)
                cache.take(seq_id, n)
            case "share" if cache.length(other) > length:
                end = data.draw(st.integers(length, cache.length(other)))
                account.share(other, seq_id, length, end)
                cache.share(other, seq_id, length, end)
            case "cut":
                n_kept = data.draw(st.integers(0, length + 1))
                account.cut(seq_id, n_kept)
                cache.remove(seq_id, n_kept, N_CELLS)
            case "close_gap" if length:
                start = data.draw(st.integers(0, length))
                end = data.draw(st.integers(start, length))
                if account.n_private(seq_id, end, length) == length - end:
                    account.close_gap(seq_id, start, end)
                    cache.remove(seq_id, start, end)
                    cache.move(seq_id, end, start - end)
        assert account.n_free == cache.n_free
        for each in range(N_SEQUENCES):
            length = account.length(each)
            assert length == cache.length(each)
            start = data.draw(st.integers(0, length))
            owners = cache.at(each, start, length)
            assert account.n_private(each, start, length) == owners.count({each})
            mate = (each + 1) % N_SEQUENCES
            assert account.have_common(each, mate, start, N_CELLS) == any(mate in some for some in owners)


def test_llama_cpp_is_out_of_cells_exactly_when_the_account_says(byte_model: Path) -> None:
    """Prefixes are lent, sequences shortened and filled up again, until nothing is free."""
    params = ContextParams(n_ctx=256, n_batch=256, n_ubatch=64, n_seq_max=6, n_threads=1, n_threads_batch=1)
    dice = np.random.default_rng(5)
    with Model.load(byte_model) as model, Context.open(model, params) as context:
        account = Account(context.n_ctx, params.n_seq_max)
        for _ in range(300):
            seq_id, other = (int(each) for each in dice.permutation(params.n_seq_max)[:2])
            length = account.length(seq_id)
            match dice.integers(4):
                case 0:
                    n_kept = int(dice.integers(length + 1))
                    assert context.truncate(seq_id, n_kept)
                    account.cut(seq_id, n_kept)
                case 1 if (end := account.length(other)) > length:
                    context.share(other, seq_id, length, end)
                    account.share(other, seq_id, length, end)
                case _:
                    n = int(dice.integers(1, 40))
                    outcome = context.decode([Piece(seq_id, length, np.full(n, 7, dtype=np.int32), True)])
                    if n <= account.n_free:
                        assert isinstance(outcome, Decoded)
                        account.take(seq_id, n)
                    else:
                        assert outcome == OutOfCells()
            assert context.length(seq_id) == account.length(seq_id)
        if account.n_free:
            rest = Piece(0, account.length(0), np.full(account.n_free, 7, dtype=np.int32), True)
            assert isinstance(context.decode([rest]), Decoded)
        assert context.decode([Piece(1, account.length(1), np.full(1, 7, dtype=np.int32), True)]) == OutOfCells()
