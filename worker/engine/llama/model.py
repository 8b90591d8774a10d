"""A loaded model: what it is, and its vocabulary."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import llama_cpp

from shared.modelfile import LoadFailed, check_file
from shared.overrides import MetadataOverride
from worker.closing import Closing
from worker.engine.llama import backend
from worker.engine.llama.adapter import LoadedAdapters
from worker.engine.llama.facts import read_facts, token_piece
from worker.engine.llama.loading import LoadAbandoned, LoadWatch, ModelParams
from worker.engine.llama.room import check_model
from worker.engine.options import LoadOptions
from worker.grammar.lexicon import Lexicon, lexicon

_PARSED_AS_SPECIAL = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
"""What `parse_special` is about; user-defined tokens are parsed in any text."""


class Model(Closing):
    """A loaded model: its facts, its vocabulary. Everything but `close` may be called from any thread."""

    def __init__(self, pointer: Any, path: Path, overrides: Sequence[MetadataOverride] = ()) -> None:
        self._pointer = pointer
        self.adapters = LoadedAdapters()
        self._vocab = llama_cpp.llama_model_get_vocab(pointer)
        self._bytes: dict[tuple[int, bool], bytes] = {}
        self.facts = read_facts(pointer, self._vocab, path, overrides)
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
    def load(cls, path: Path, options: LoadOptions | None = None, watch: LoadWatch | None = None) -> Self:
        """Map the file into memory. LoadFailed when it is missing, unreadable, or nothing llama.cpp knows, or an option
        names what is not there; LoadAbandoned when the `watch` says so."""
        options, watch = options or LoadOptions(), watch or LoadWatch()
        check_file(path)
        backend.acquire(options.numa)
        try:
            check_model(path, options)
            pointer = _load(path, options, watch)
        except BaseException:
            backend.release()
            raise
        return cls(pointer, path, options.overrides)

    def load_adapters(self, paths: Sequence[Path]) -> None:
        """Once, before a context is opened. LoadFailed when one is missing, or is none for this model."""
        self.adapters = LoadedAdapters.load(self.pointer, paths)

    def close(self) -> None:
        if self._pointer:
            self.adapters.close()
            llama_cpp.llama_model_free(self._pointer)
            self._pointer = None
            backend.release()

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
            known = self._bytes[token, special] = token_piece(self._vocab, token, special)
        return known


def _load(path: Path, options: LoadOptions, watch: LoadWatch) -> Any:
    backend.forget_errors()
    params = ModelParams(options, watch)
    pointer = llama_cpp.llama_model_load_from_file(bytes(path), params.native)
    if not pointer and watch.is_abandoned:
        raise LoadAbandoned
    if not pointer:
        raise LoadFailed(f"llama.cpp cannot load {path}{backend.because()}")
    if fault := _fault(pointer):
        llama_cpp.llama_model_free(pointer)
        raise LoadFailed(fault)
    return pointer


def _fault(pointer: Any) -> str | None:
    """Why a model that llama.cpp has loaded is of no use."""
    if llama_cpp.llama_vocab_type(llama_cpp.llama_model_get_vocab(pointer)) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
        return "the model has no vocabulary"
    if ignored := backend.warned_of("Bad metadata override type"):
        return f"--override-kv: {ignored[0].lower()}{ignored[1:]}"
    return None
