"""llama.cpp as typed values: the only module that imports `llama_cpp`, and the only one that holds native pointers.

`Model` may be used from any thread. A `Context` belongs to the thread that decodes. What is expected of a decode
(no room, a bad batch) comes back as an outcome; what makes a start impossible is raised as `LoadFailed`.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from worker.engine.config import EngineConfig, Pooling
from worker.grammar.lexicon import Lexicon, lexicon

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]


class LoadFailed(Exception):
    """The model or its context cannot be had. The message is one sentence for people."""


class FillTokens(NamedTuple):
    """What a model was taught to mark the sides of a gap with, which it fills; -1 where it has no such token."""

    prefix: int = -1
    suffix: int = -1
    middle: int = -1
    repository: int = -1
    separator: int = -1
    """Before each file's name."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model says of itself. `size` is in bytes; an id is -1 when the model has no such token."""

    path: Path
    architecture: str
    description: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    vocab_type: int
    ftype: str
    chat_template: str
    bos: int
    eos: int
    newline: int
    bos_token: str
    eos_token: str
    adds_bos: bool
    can_rewind: bool
    """Whether a sequence can lose its end and lend its beginning: not so when the state of a model is recurrent
    or its attention window slides."""
    fill: FillTokens = field(default_factory=FillTokens)
    n_swa: int = 0
    """Width of the sliding window in tokens; 0 for none."""
    metadata: dict[str, str] = field(default_factory=dict)


class Piece(NamedTuple):
    """Consecutive tokens of one sequence in a batch."""

    seq_id: int
    position: int
    """Of the first token."""
    tokens: Ids
    wants_logits: bool
    """Of the last token."""


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


_LEVELS = {3: logging.WARNING, 4: logging.ERROR}
_EXPECTED = (
    # Every model gets this warning that was not made for embeddings: a pooling is chosen for it on purpose.
    "default pooling_type is",
    # What is said of an interrupted decode, layer by layer: 1 is the status of an aborted graph.
    "graph_compute_async failed with error 1",
    "failed to compute graph, compute status: 1",
    "removing memory module entries",
    "failed to decode, ret = 2",
)
_last_errors: deque[str] = deque(maxlen=8)
_last_level = 0


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _user: ctypes.c_void_p) -> None:
    """Warnings and errors go to our log; level 5 continues the line before."""
    global _last_level  # noqa: PLW0603 - llama.cpp knows one log for the whole process
    level = _last_level if level == 5 else level
    _last_level = level
    message = text.decode("utf-8", "replace").strip()
    if level not in _LEVELS or not message or any(each in message for each in _EXPECTED):
        return
    if level == 4:
        _last_errors.append(message)
    log.log(_LEVELS[level], "llama.cpp: %s", message)


_backend_lock = threading.Lock()
_backend_users = 0


def _acquire_backend() -> None:
    global _backend_users  # noqa: PLW0603 - one backend per process, counted
    with _backend_lock:
        if _backend_users == 0:
            llama_cpp.llama_log_set(_on_log, ctypes.c_void_p(0))
            llama_cpp.llama_backend_init()
        _backend_users += 1


def _release_backend() -> None:
    global _backend_users  # noqa: PLW0603 - one backend per process, counted
    with _backend_lock:
        _backend_users -= 1
        if _backend_users == 0:
            llama_cpp.llama_backend_free()


_PARSED_AS_SPECIAL = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
"""What `parse_special` is about; user-defined tokens are parsed in any text."""


class Model:
    """A loaded model: its facts, its vocabulary. Everything but `close` may be called from any thread."""

    def __init__(self, pointer: Any, path: Path) -> None:
        self._pointer = pointer
        self._vocab = llama_cpp.llama_model_get_vocab(pointer)
        self._bytes: dict[tuple[int, bool], bytes] = {}
        self.facts = _facts(pointer, self._vocab, path)
        self.eog = frozenset(
            token for token in range(self.facts.n_vocab) if llama_cpp.llama_vocab_is_eog(self._vocab, token)
        )
        """Every token that ends a generation: EOS, end of turn and their kin."""
        self.control = frozenset(
            token
            for token in range(self.facts.n_vocab)
            if llama_cpp.llama_vocab_get_attr(self._vocab, token) & _PARSED_AS_SPECIAL
        )
        """Tokens that are not text."""
        self.control_texts = frozenset(
            text for token in self.control if (text := self.token_bytes(token, special=True).decode("utf-8", "replace"))
        )
        """What a text must not contain if its author is not to write control tokens into a prompt."""
        self.longest_token = max(len(self.token_bytes(token, special=True)) for token in range(self.facts.n_vocab))
        """In bytes: a text of n bytes has n / longest_token tokens at least."""

    @classmethod
    def load(cls, path: Path, *, n_gpu_layers: int = -1) -> Self:
        """Map the file into memory. LoadFailed when it is missing, unreadable, or nothing llama.cpp knows."""
        _check_file(path)
        _acquire_backend()
        _last_errors.clear()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        pointer = llama_cpp.llama_model_load_from_file(bytes(path), params)
        if not pointer:
            _release_backend()
            raise LoadFailed(f"llama.cpp cannot load {path}{_because()}")
        return cls(pointer, path)

    def close(self) -> None:
        if self._pointer:
            llama_cpp.llama_model_free(self._pointer)
            self._pointer = None
            _release_backend()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pointer(self) -> Any:
        assert self._pointer, "the model is closed"
        return self._pointer

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text; NUL is a character like others. UnicodeEncodeError on a lone surrogate."""
        content = text.encode("utf-8")
        room = len(content) + 8
        while True:
            ids = (ctypes.c_int32 * room)()
            n = llama_cpp.llama_tokenize(self._vocab, content, len(content), ids, room, add_special, parse_special)
            if n >= 0:
                return list(ids[:n])
            room = -n

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> str:
        """Text of the ids, control tokens shown when `special`; bytes that are no UTF-8 become U+FFFD.

        ValueError for an id outside the vocabulary: llama.cpp would abort the process.
        """
        if not tokens:
            return ""
        if not self.has_tokens(tokens):
            raise ValueError("a token id is outside the vocabulary")
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        room = 8 * len(tokens) + 64
        while True:
            text = ctypes.create_string_buffer(room)
            n = llama_cpp.llama_detokenize(self._vocab, ids, len(tokens), text, room, False, special)
            if n >= 0:
                return text.raw[:n].decode("utf-8", "replace")
            room = -n

    def lexicon(self) -> Lexicon:
        """The vocabulary to match grammars over; the same one when the model is loaded again."""
        return lexicon(
            tuple(self.token_bytes(token, special=True) for token in range(self.facts.n_vocab)), self.control, self.eog
        )

    def has_tokens(self, tokens: Sequence[int]) -> bool:
        """Whether all ids are in the vocabulary."""
        return not tokens or (min(tokens) >= 0 and max(tokens) < self.facts.n_vocab)

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes one token stands for; those of a control token only when `special`. ValueError as above."""
        known = self._bytes.get((token, special))
        if known is None:
            if not self.has_tokens((token,)):
                raise ValueError("a token id is outside the vocabulary")
            known = self._bytes[token, special] = _piece(self._vocab, token, special)
        return known


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise LoadFailed(f"cannot read the model {path}: {(error.strerror or str(error)).lower()}") from None
    if magic != b"GGUF":
        raise LoadFailed(f"{path} is not a GGUF file")


def _because() -> str:
    """The end of a sentence: what llama.cpp said last, if anything."""
    reasons = [line for line in _last_errors if "error loading model" in line] or list(_last_errors)
    if not reasons:
        return ""
    return ": " + reasons[0].rsplit("error loading model: ", 1)[-1].rstrip(".")


def _facts(pointer: Any, vocab: Any, path: Path) -> ModelFacts:
    metadata = _metadata(pointer)
    template = llama_cpp.llama_model_chat_template(pointer, None)
    bos, eos = llama_cpp.llama_vocab_bos(vocab), llama_cpp.llama_vocab_eos(vocab)
    return ModelFacts(
        path=path,
        architecture=metadata.get("general.architecture", ""),
        description=_description(pointer),
        n_vocab=llama_cpp.llama_vocab_n_tokens(vocab),
        n_ctx_train=llama_cpp.llama_model_n_ctx_train(pointer),
        n_embd=llama_cpp.llama_model_n_embd(pointer),
        n_params=llama_cpp.llama_model_n_params(pointer),
        size=llama_cpp.llama_model_size(pointer),
        vocab_type=llama_cpp.llama_vocab_type(vocab),
        ftype=_ftype(llama_cpp.llama_model_ftype(pointer)),
        chat_template=template.decode("utf-8", "replace") if template else "",
        bos=bos,
        eos=eos,
        newline=llama_cpp.llama_vocab_nl(vocab),
        bos_token=_piece(vocab, bos, True).decode("utf-8", "replace") if bos >= 0 else "",
        eos_token=_piece(vocab, eos, True).decode("utf-8", "replace") if eos >= 0 else "",
        adds_bos=bool(llama_cpp.llama_vocab_get_add_bos(vocab)),
        can_rewind=not (
            llama_cpp.llama_model_is_recurrent(pointer)
            or llama_cpp.llama_model_is_hybrid(pointer)
            or llama_cpp.llama_model_n_swa(pointer) > 0
        ),
        fill=FillTokens(
            prefix=llama_cpp.llama_vocab_fim_pre(vocab),
            suffix=llama_cpp.llama_vocab_fim_suf(vocab),
            middle=llama_cpp.llama_vocab_fim_mid(vocab),
            repository=llama_cpp.llama_vocab_fim_rep(vocab),
            separator=llama_cpp.llama_vocab_fim_sep(vocab),
        ),
        n_swa=llama_cpp.llama_model_n_swa(pointer),
        metadata=metadata,
    )


def _metadata(pointer: Any) -> dict[str, str]:
    def read(get: Any, index: int) -> str:
        room = 256
        while True:
            text = ctypes.create_string_buffer(room)
            n: int = get(pointer, index, text, room)
            if n < room:
                return text.raw[: max(n, 0)].decode("utf-8", "replace")
            room = n + 1

    return {
        read(llama_cpp.llama_model_meta_key_by_index, index): read(llama_cpp.llama_model_meta_val_str_by_index, index)
        for index in range(llama_cpp.llama_model_meta_count(pointer))
    }


def _description(pointer: Any) -> str:
    text = ctypes.create_string_buffer(256)
    llama_cpp.llama_model_desc(pointer, text, len(text))
    return text.value.decode("utf-8", "replace")


def _ftype(number: int) -> str:
    """`Q4_1` and the like. The bit 1024 says that the loader guessed."""
    for name, value in vars(llama_cpp).items():
        if name.startswith("LLAMA_FTYPE_") and value == number & ~1024:
            return str(name).removeprefix("LLAMA_FTYPE_").removeprefix("MOSTLY_").removeprefix("ALL_")
    return ""


def _piece(vocab: Any, token: int, special: bool) -> bytes:
    room = 64
    while True:
        text = ctypes.create_string_buffer(room)
        n = llama_cpp.llama_token_to_piece(vocab, token, text, room, 0, special)
        if n >= 0:
            return text.raw[:n]
        room = -n


class _Batch:
    """A `llama_batch` whose arrays are ours, so that filling it is a handful of slice assignments."""

    def __init__(self, n_tokens: int) -> None:
        self.token = np.zeros(n_tokens, dtype=np.int32)
        self.position = np.zeros(n_tokens, dtype=np.int32)
        self.n_seq_id = np.ones(n_tokens, dtype=np.int32)
        self.seq_id = np.zeros(n_tokens, dtype=np.int32)
        self.wants_logits = np.zeros(n_tokens, dtype=np.int8)
        # llama.cpp wants an array of ids for each token; each of ours has one id and points into `seq_id`.
        self._seq_pointers = self.seq_id.ctypes.data + 4 * np.arange(n_tokens, dtype=np.uintp)
        self.native = llama_cpp.llama_batch()
        self.native.token = _pointer(self.token, ctypes.c_int32)
        self.native.embd = None
        self.native.pos = _pointer(self.position, ctypes.c_int32)
        self.native.n_seq_id = _pointer(self.n_seq_id, ctypes.c_int32)
        self.native.seq_id = _pointer(self._seq_pointers, ctypes.POINTER(ctypes.c_int32))
        self.native.logits = _pointer(self.wants_logits, ctypes.c_int8)
        self._counting = np.arange(n_tokens, dtype=np.int32)

    def fill(self, pieces: Sequence[Piece], *, all_outputs: bool = False) -> int:
        """Write the pieces one after the other; returns how many rows want logits."""
        sizes = np.array([len(tokens) for _, _, tokens, _ in pieces])
        ends = sizes.cumsum()
        n_tokens = int(ends[-1])
        offsets = np.array([position for _, position, _, _ in pieces]) - (ends - sizes)
        self.token[:n_tokens] = np.concatenate([tokens for _, _, tokens, _ in pieces])
        self.position[:n_tokens] = np.repeat(offsets, sizes) + self._counting[:n_tokens]
        self.seq_id[:n_tokens] = np.repeat([seq_id for seq_id, _, _, _ in pieces], sizes)
        self.wants_logits[:n_tokens] = all_outputs
        outputs = ends[[wants_logits for _, _, _, wants_logits in pieces]] - 1
        self.wants_logits[outputs] = 1
        self.native.n_tokens = n_tokens
        return len(outputs)


class Interrupt:
    """Ends a decode halfway. `set` and `clear` are for any thread. CPU only: elsewhere a decode runs to its end.

    llama.cpp asks before each of a decode's hundreds of operations, through a C function. One of Python's would take
    the GIL each time, so it gets libc's `atoi` and the address of "0" or "1": the answer is an int, whose lowest byte
    is the bool that is read, on x86-64 as on ARM.
    """

    ASK = ctypes.cast(ctypes.CDLL(None).atoi, llama_cpp.ggml_abort_callback)
    ASK_NOTHING = llama_cpp.ggml_abort_callback()

    def __init__(self) -> None:
        self._digits = ctypes.create_string_buffer(b"0")

    @property
    def address(self) -> int:
        return ctypes.addressof(self._digits)

    def set(self) -> None:
        self._digits[0] = b"1"

    def clear(self) -> None:
        self._digits[0] = b"0"


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


class Context:
    """A KV cache and what computes with it: one unified cache for all sequences. For one thread."""

    def __init__(self, pointer: Any, model: Model, params: ContextParams) -> None:
        self._pointer = pointer
        self._memory = llama_cpp.llama_get_memory(pointer)
        self._model = model
        self._params = params
        self._batch = _Batch(params.n_batch)
        self.n_ctx: int = llama_cpp.llama_n_ctx(pointer)
        """KV cells; llama.cpp rounds what was asked for up."""
        self.n_batch = params.n_batch
        self.n_embd: int = llama_cpp.llama_model_n_embd_out(model.pointer)

    @classmethod
    def open(cls, model: Model, params: ContextParams) -> Self:
        """LoadFailed when the parameters do not go together or memory is short."""
        return cls(_new_context(model, params), model, params)

    def reopen(self) -> None:
        """Be as if just opened: whatever was in the cache, or wrong with it, is gone. LoadFailed when it cannot be had
        or does not compute; then it may be tried again."""
        self.close()
        self._pointer = _new_context(self._model, self._params)
        self._memory = llama_cpp.llama_get_memory(self._pointer)
        self.warm_up()

    def close(self) -> None:
        if self._pointer:
            llama_cpp.llama_free(self._pointer)
            self._pointer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def warm_up(self) -> None:
        """Touch the weights once, so that the first request does not wait for the disk. Leaves the cache empty.
        LoadFailed when what comes of it is of no use."""
        if not self.can_generate:
            return
        outcome = self.decode([Piece(0, 0, np.zeros(1, dtype=np.int32), True)])
        if not isinstance(outcome, Decoded):
            raise LoadFailed(f"the model cannot compute: {getattr(outcome, 'reason', 'there is no room for a token')}")
        if np.isnan(outcome.logits).any():
            raise LoadFailed("the model computes what are not numbers")
        self.clear()

    def decode(self, pieces: Sequence[Piece], interrupt: Interrupt | None = None) -> Outcome:
        """Compute the pieces as one batch of at most `n_batch` tokens. Releases the GIL meanwhile."""
        n_outputs = self._batch.fill(pieces)
        match self._compute(interrupt):
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

    def embed(self, tokens: Ids) -> Floats | DecodeFailed:
        """The pooled vector of one whole input; the context must have been opened for embeddings.

        One input a decode: in a common batch each shifts its neighbours' sums by a rounding, which the quantization
        of activations then blows up to 1e-3. Nothing stays in the cache.
        """
        self._batch.fill((Piece(0, 0, tokens, False),), all_outputs=True)
        self.clear()
        if (code := self._compute(None)) != 0:
            return DecodeFailed(_failure(code))
        pointer = llama_cpp.llama_get_embeddings_seq(self._pointer, 0)
        if not pointer:
            return DecodeFailed("llama.cpp gave no embedding")
        vector: Floats = np.ctypeslib.as_array(pointer, shape=(self.n_embd,)).copy()
        return vector

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
        """Without a cache there is nothing to go on from; and what has an encoder wants more than a prompt."""
        return bool(self._memory) and not llama_cpp.llama_model_has_encoder(self._model.pointer)

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
    _last_errors.clear()
    pointer = llama_cpp.llama_init_from_model(model.pointer, params.to_native())
    if not pointer:
        raise LoadFailed(f"llama.cpp cannot make a context of {params.n_ctx} cells{_because()}")
    return pointer


OpenContext = Callable[[Model, "ContextParams"], Context]
"""How a context is had: `Context.open`, or what a test puts in its place."""


def _failure(code: int) -> str:
    reasons = {
        -1: "llama.cpp refused the batch as invalid",
        2: "llama.cpp ended the batch halfway, unasked",
        -2: "llama.cpp had no memory for the batch",
        -3: "llama.cpp failed to compute the batch",
    }
    return reasons.get(code, f"llama.cpp failed with code {code}")


@dataclass(frozen=True, slots=True)
class ContextParams:
    """What a context is made with; plain values of `EngineConfig`, resolved against the model."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    """Ids of sequences: those below."""
    n_threads: int
    n_threads_batch: int
    flash_attention: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    pooling: Pooling | None = None
    """Set: the context gives embeddings instead of logits."""

    @classmethod
    def to_generate(cls, config: EngineConfig, n_ctx: int, n_ids: int) -> Self:
        return cls(
            n_ctx=n_ctx,
            n_batch=min(config.n_batch, n_ctx),
            n_ubatch=min(config.n_ubatch, n_ctx),
            n_seq_max=n_ids,
            n_threads=config.n_threads,
            n_threads_batch=config.n_threads_batch,
            flash_attention=config.flash_attention,
            cache_type_k=config.cache_type_k,
            cache_type_v=config.cache_type_v,
        )

    @classmethod
    def to_embed(cls, config: EngineConfig, pooling: Pooling) -> Self:
        """A sequence is pooled within one ubatch, so this is all the cells that a decode can use."""
        return cls(
            n_ctx=config.n_ubatch,
            n_batch=config.n_ubatch,
            n_ubatch=config.n_ubatch,
            n_seq_max=1,
            n_threads=config.n_threads_batch,
            n_threads_batch=config.n_threads_batch,
            flash_attention=config.flash_attention,
            pooling=pooling,
        )

    def to_native(self) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = self.n_ctx
        params.n_batch = max(self.n_batch, self.n_seq_max)  # llama.cpp aborts if it is less
        params.n_ubatch = self.n_ubatch
        params.n_seq_max = self.n_seq_max
        params.n_threads = self.n_threads
        params.n_threads_batch = self.n_threads_batch
        params.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[self.flash_attention]
        params.type_k = _cache_type(self.cache_type_k)
        params.type_v = _cache_type(self.cache_type_v)
        params.kv_unified = True
        params.no_perf = True
        params.embeddings = self.pooling is not None
        if self.pooling is not None:
            params.pooling_type = {"mean": 1, "cls": 2, "last": 3}[self.pooling]
        return params


CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


def _cache_type(name: str) -> int:
    if name not in CACHE_TYPES:
        raise LoadFailed(f"cache type {name!r} is none of {', '.join(CACHE_TYPES)}")
    return {"bf16": 30}.get(name) or int(getattr(llama_cpp, f"GGML_TYPE_{name.upper()}"))


def model_pooling(model: Model) -> Pooling:
    """How a model wants its embeddings pooled; mean when it names nothing that gives one vector."""
    named = model.facts.metadata.get(f"{model.facts.architecture}.pooling_type", "")
    pooling: dict[str, Pooling] = {"1": "mean", "2": "cls", "3": "last"}
    return pooling.get(named, "mean")


def max_sequences() -> int:
    return int(llama_cpp.llama_max_parallel_sequences())
