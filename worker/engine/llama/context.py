"""A KV cache and what computes with it; what comes of a decode."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import llama_cpp
import numpy as np

from shared.modelfile import LoadFailed
from worker.closing import Closing
from worker.engine.adapters import Scales
from worker.engine.llama import backend, state
from worker.engine.llama.backend import Floats
from worker.engine.llama.batch import Batch, Piece
from worker.engine.llama.interrupt import Interrupt
from worker.engine.llama.model import Model
from worker.engine.llama.params import ContextParams
from worker.engine.llama.room import check_room
from worker.engine.llama.state import Bytes, StateRefused


class Decoded(NamedTuple):
    """The batch is in the cache. `logits` is a view, one row for each piece that wanted them, in the order of the
    pieces; it may be written to and is valid until the next decode."""

    logits: Floats


class OutOfCells(NamedTuple):
    """No room for this batch; the cache is as it was before."""


class DecodeFailed(NamedTuple):
    """llama.cpp refused or lost the batch; parts of it may be in the cache."""

    reason: str


class Interrupted(NamedTuple):
    """It was ended halfway; parts of it may be in the cache."""


Outcome = Decoded | OutOfCells | DecodeFailed | Interrupted


class Context(Closing):
    """A KV cache and what computes with it: one unified cache for all sequences. For one thread."""

    def __init__(self, pointer: Any, model: Model, params: ContextParams) -> None:
        self._pointer = pointer
        self._memory = llama_cpp.llama_get_memory(pointer)
        self._model = model
        self._params = params
        self._scales: Scales = ()
        self._batch = Batch(params.n_batch)
        self.n_ctx: int = llama_cpp.llama_n_ctx(pointer)
        """KV cells; llama.cpp rounds what was asked for up."""
        self.n_batch = params.n_batch
        self.n_ubatch = params.n_ubatch
        self.n_embd: int = llama_cpp.llama_model_n_embd_out(model.pointer)

    @classmethod
    def open(cls, model: Model, params: ContextParams) -> Self:
        """LoadFailed when the parameters do not go together or memory is short."""
        return cls(_new_context(model, params), model, params)

    def reopen(self) -> None:
        """Be as if just opened, but adapted: whatever was in the cache, or wrong with it, is gone. LoadFailed when it
        cannot be had or does not compute; then it may be tried again."""
        self.close()
        self._pointer = _new_context(self._model, self._params)
        self._memory = llama_cpp.llama_get_memory(self._pointer)
        scales, self._scales = self._scales, ()
        self.warm_up()  # without adapters, whose scales may be the reason why nothing can be computed
        self.adapt(scales)

    def close(self) -> None:
        if self._pointer:
            llama_cpp.llama_free(self._pointer)
            self._pointer = self._memory = None

    def warm_up(self) -> None:
        """Touch the weights once, so that the first request does not wait for the disk. Leaves the cache empty.
        LoadFailed when what comes of it is of no use."""
        if self._params.pooling is not None:
            self._warm_up_to_embed()
            return
        if not self.can_generate:
            return
        outcome = self.decode([Piece(0, 0, np.zeros(1, dtype=np.int32), True)])
        if not isinstance(outcome, Decoded):
            raise LoadFailed(f"the model cannot compute: {getattr(outcome, 'reason', 'there is no room for a token')}")
        if np.isnan(outcome.logits).any():
            raise LoadFailed("the model computes what are not numbers")
        self.clear()

    def _warm_up_to_embed(self) -> None:
        rows = self.embed([Piece(0, 0, np.zeros(1, dtype=np.int32), False)])
        if isinstance(rows, DecodeFailed):
            raise LoadFailed(f"the model cannot compute: {rows.reason}")
        self.clear()

    def adapt(self, scales: Scales) -> None:
        """Add so much of each of the model's adapters to what is computed from now on; () for nothing of any. Another
        set than before costs the next decode some milliseconds: llama.cpp plans its memory anew."""
        if scales != self._scales:
            self._model.adapters.use(self._pointer, scales)
            self._scales = scales

    def decode(self, pieces: Sequence[Piece], interrupt: Interrupt | None = None) -> Outcome:
        """Compute the pieces as one batch of at most `n_batch` tokens; one with rows is alone in it, and if those are
        not causal they are `n_ubatch` at most. Releases the GIL meanwhile."""
        rows = pieces[0].rows
        n_outputs = self._batch.fill(pieces) if rows is None else self._batch.fill_rows(pieces[0], rows)
        with self._attending(is_causal=rows is None or rows.is_causal):
            code = self._compute(interrupt)
        match code:
            case 0:
                logits = self._logits(n_outputs)
                return DecodeFailed("llama.cpp gave no logits") if logits is None else Decoded(logits)
            case 1:
                return OutOfCells()
            case 2 if interrupt is not None:
                return Interrupted()
            case code:
                return DecodeFailed(_failure(code))

    def _compute(self, interrupt: Interrupt | None) -> int:
        """Decode the batch as it is filled, or encode it where the model has no cache. Returns llama.cpp's code."""
        with self._heeding(interrupt):
            return int(llama_cpp.llama_decode(self._pointer, self._batch.native))

    @contextlib.contextmanager
    def _attending(self, *, is_causal: bool) -> Iterator[None]:
        """How rows see each other within: llama.cpp ends the process if those that are not causal do not fit into one
        ubatch."""
        if is_causal:
            yield
            return
        assert self._batch.native.n_tokens <= self.n_ubatch
        llama_cpp.llama_set_causal_attn(self._pointer, False)
        try:
            yield
        finally:
            llama_cpp.llama_set_causal_attn(self._pointer, True)

    @contextlib.contextmanager
    def _heeding(self, interrupt: Interrupt | None) -> Iterator[None]:
        """What is computed within ends when the interrupt is set; without one, by nothing."""
        if interrupt is None:
            yield
            return
        llama_cpp.llama_set_abort_callback(self._pointer, Interrupt.ASK, interrupt.address)
        try:
            yield
        finally:
            llama_cpp.llama_set_abort_callback(self._pointer, Interrupt.ASK_NOTHING, None)

    def embed(self, pieces: Sequence[Piece]) -> list[Floats] | DecodeFailed:
        """What becomes of each piece, in rows: one vector, or one for each token where the context does not pool, or
        the scores of a classifier. The context must have been opened for it, and the pieces fit into one ubatch.

        What is pooled is the piece alone, not what its sequence has in the cache before it; the last token has seen
        that all the same. The pieces stay in the cache.
        """
        self._batch.fill(pieces, all_outputs=True)
        if (code := self._compute(None)) != 0:
            return DecodeFailed(_failure(code))
        rows = self._token_rows(pieces) if self._params.pooling == "none" else self._pooled_rows(pieces)
        return DecodeFailed("llama.cpp gave no embedding") if rows is None else rows

    def _pooled_rows(self, pieces: Sequence[Piece]) -> list[Floats] | None:
        pointers = [llama_cpp.llama_get_embeddings_seq(self._pointer, piece.seq_id) for piece in pieces]
        if not all(pointers):
            return None
        return [np.ctypeslib.as_array(pointer, shape=(1, self._n_columns)).copy() for pointer in pointers]

    def _token_rows(self, pieces: Sequence[Piece]) -> list[Floats] | None:
        pointer = llama_cpp.llama_get_embeddings(self._pointer)
        if not pointer:
            return None
        sizes = [len(piece.tokens) for piece in pieces]
        rows = np.ctypeslib.as_array(pointer, shape=(sum(sizes), self._n_columns)).copy()
        return np.split(rows, np.cumsum(sizes)[:-1])

    @property
    def _n_columns(self) -> int:
        """Of what is embedded: the model's width, or the classes of its classifier."""
        if self._params.pooling == "rank":
            return int(llama_cpp.llama_model_n_cls_out(self._model.pointer))
        return self.n_embd

    def truncate(self, seq_id: int, n_kept: int) -> bool:
        """Drop all positions of a sequence from `n_kept` on; False when the model cannot and all must go."""
        if self._model.facts.n_swa and 0 < n_kept < self.length(seq_id):
            return False  # cells that have left the window may be another's by now, and would be in it again
        return bool(llama_cpp.llama_memory_seq_rm(self._memory, self._checked(seq_id), n_kept, -1))

    def share(self, source: int, target: int, start: int, end: int) -> None:
        """Let `target` have positions [start, end) of `source` too. Costs no cells."""
        llama_cpp.llama_memory_seq_cp(self._memory, self._checked(source), self._checked(target), start, end)

    @property
    def n_cells(self) -> int:
        """Of the KV cache: one a token; a state that is recurrent takes none."""
        return sys.maxsize if llama_cpp.llama_model_is_recurrent(self._model.pointer) else self.n_ctx

    @property
    def can_generate(self) -> bool:
        """Without a cache there is nothing to go on from; what has an encoder wants more than a prompt; and what was
        opened to embed has no logits."""
        has_cache_alone = bool(self._memory) and not llama_cpp.llama_model_has_encoder(self._model.pointer)
        return has_cache_alone and self._params.pooling is None

    @property
    def can_go_on(self) -> bool:
        """Whether a text can be computed piece by piece, each behind what is in the cache."""
        return bool(self._memory) and bool(llama_cpp.llama_get_causal_attn(self._pointer))

    @property
    def can_shift(self) -> bool:
        """Whether tokens can be moved to other positions; llama.cpp ends the process where they cannot. A sliding
        window would be moved to tokens that it has lost, and a state knows no positions."""
        return self._model.facts.can_rewind and bool(llama_cpp.llama_memory_can_shift(self._memory))

    def shift(self, seq_id: int, start: int, end: int) -> None:
        """Drop positions [start, end) and move up what is behind, for all sequences that have it."""
        assert self.can_shift
        assert 0 <= start < end
        llama_cpp.llama_memory_seq_rm(self._memory, self._checked(seq_id), start, end)
        llama_cpp.llama_memory_seq_add(self._memory, seq_id, end, -1, start - end)

    def divide(self, seq_id: int, start: int, n: int) -> None:
        """Let each `n` of the positions from `start` on be one, for all sequences that have them."""
        assert self.can_shift
        assert start >= 0 < n
        # Moved up first, so that dividing leaves them where they began.
        llama_cpp.llama_memory_seq_add(self._memory, self._checked(seq_id), start, -1, start * (n - 1))
        llama_cpp.llama_memory_seq_div(self._memory, seq_id, start * n, -1, n)

    def take_state(self, seq_id: int) -> Bytes | None:
        """A copy of all that the cache has of a sequence; None when llama.cpp does not give it."""
        return state.take(self._pointer, self._checked(seq_id))

    def put_state(self, seq_id: int, saved: Bytes, n_positions: int) -> None:
        """Let a sequence that has nothing have what `take_state` gave for as many positions, here or in a context of
        the same kind; there must be cells for it. StateRefused, after which it has nothing."""
        refused = "llama.cpp refuses its state"
        if state.put(self._pointer, self._checked(seq_id), saved):
            if self.length(seq_id) == n_positions:
                return
            refused = f"its state has {self.length(seq_id)} positions, and {n_positions} tokens belong to it"
        llama_cpp.llama_memory_seq_rm(self._memory, seq_id, -1, -1)
        raise StateRefused(refused)

    def length(self, seq_id: int) -> int:
        """Positions that a sequence has in the cache."""
        return 1 + int(llama_cpp.llama_memory_seq_pos_max(self._memory, self._checked(seq_id)))

    def _checked(self, seq_id: int) -> int:
        """llama.cpp takes -1 for all sequences, and ends the process at ids that it does not have."""
        assert 0 <= seq_id < self._params.n_seq_max
        return seq_id

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(self._memory, False)

    def _logits(self, n_rows: int) -> Floats | None:
        n_vocab = self._model.facts.n_vocab
        if n_rows == 0:
            return np.empty((0, n_vocab), dtype=np.float32)
        pointer = llama_cpp.llama_get_logits(self._pointer)
        if not pointer:
            return None
        logits: Floats = np.ctypeslib.as_array(pointer, shape=(n_rows, n_vocab))
        return logits


def _new_context(model: Model, params: ContextParams) -> Any:
    native = params.to_native()
    check_room(model.facts, params)
    backend.forget_errors()
    pointer = llama_cpp.llama_init_from_model(model.pointer, native)
    if not pointer:
        raise LoadFailed(f"llama.cpp cannot make a context of {params.n_ctx} cells{backend.because()}")
    return pointer


def _failure(code: int) -> str:
    reasons = {
        -1: "llama.cpp refused the batch as invalid",
        2: "llama.cpp ended the batch halfway, unasked",
        -2: "llama.cpp had no memory for the batch",
        -3: "llama.cpp failed to compute the batch",
    }
    return reasons.get(code, f"llama.cpp failed with code {code}")


OpenContext = Callable[[Model, ContextParams], Context]
"""How a context is had: `Context.open`, or what a test puts in its place."""
