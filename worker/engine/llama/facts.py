"""What a model says of itself, read once when it is loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp

from shared.overrides import MetadataOverride


class FillTokens(NamedTuple):
    """What a model was taught to mark the sides of a gap with, which it fills; -1 where it has no such token."""

    prefix: int = -1
    suffix: int = -1
    middle: int = -1
    repository: int = -1
    separator: int = -1
    """Before each file's name."""

    @property
    def is_whole(self) -> bool:
        """Whether it can fill gaps: it has all that it takes."""
        return min(self.prefix, self.suffix, self.middle) >= 0


class PairTokens(NamedTuple):
    """What a vocabulary joins a query and a document with for a model that reranks, in ids."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


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
    """How most of its tensors are stored, in llama.cpp's words: `Q4_K - Medium`."""
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
    is_recurrent: bool = False
    """Whether all that a sequence has read is one state."""
    is_hybrid: bool = False
    """Whether some layers have a state and others a cache."""
    n_swa: int = 0
    """Width of the sliding window in tokens; 0 for none."""
    is_causal: bool = True
    """Whether a token sees only those before it: else nothing can be generated, and a text is computed as a whole."""
    has_classifier: bool = False
    """It says that it was made to rerank, or names classes. One that does not may have a classifier all the same."""
    pair: PairTokens = field(default_factory=PairTokens)
    rerank_template: str = ""
    """Of a query and a document, where the model has one: a text with `{query}` and `{document}` in it."""
    tool_template: str = ""
    """Another chat template, for chats with tools, where the model has one."""
    quantization: str = ""
    """The same as `ftype`, in the word that files are called by: `Q4_K_M`."""
    metadata: dict[str, str] = field(default_factory=dict)
    overrides: tuple[MetadataOverride, ...] = ()
    """Of these, what was not read from the file."""


ALWAYS_NON_CAUSAL = frozenset({"dream", "gemma-embedding", "llada", "llada-moe"})
"""Architectures of which llama.cpp knows it by itself; of all others the file says it."""


def read_facts(pointer: Any, vocab: Any, path: Path, overrides: Sequence[MetadataOverride] = ()) -> ModelFacts:
    """llama.cpp goes by the `overrides`, but shows the file's own values."""
    metadata = _metadata(pointer) | {each.key: _shown(each.value) for each in overrides}
    template = llama_cpp.llama_model_chat_template(pointer, None)
    rerank_template = llama_cpp.llama_model_chat_template(pointer, b"rerank")
    tool_template = llama_cpp.llama_model_chat_template(pointer, b"tool_use")
    ftype = llama_cpp.llama_model_ftype(pointer)
    bos, eos = llama_cpp.llama_vocab_bos(vocab), llama_cpp.llama_vocab_eos(vocab)
    architecture = metadata.get("general.architecture", "")
    return ModelFacts(
        path=path,
        architecture=architecture,
        description=_description(pointer),
        n_vocab=llama_cpp.llama_vocab_n_tokens(vocab),
        n_ctx_train=llama_cpp.llama_model_n_ctx_train(pointer),
        n_embd=llama_cpp.llama_model_n_embd(pointer),
        n_params=llama_cpp.llama_model_n_params(pointer),
        size=llama_cpp.llama_model_size(pointer),
        vocab_type=llama_cpp.llama_vocab_type(vocab),
        ftype=llama_cpp.llama_ftype_name(ftype).decode("utf-8", "replace"),
        chat_template=template.decode("utf-8", "replace") if template else "",
        bos=bos,
        eos=eos,
        newline=llama_cpp.llama_vocab_nl(vocab),
        bos_token=token_piece(vocab, bos, True).decode("utf-8", "replace") if bos >= 0 else "",
        eos_token=token_piece(vocab, eos, True).decode("utf-8", "replace") if eos >= 0 else "",
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
        is_recurrent=bool(llama_cpp.llama_model_is_recurrent(pointer)),
        is_hybrid=bool(llama_cpp.llama_model_is_hybrid(pointer)),
        n_swa=llama_cpp.llama_model_n_swa(pointer),
        is_causal=metadata.get(f"{architecture}.attention.causal") != "false" and architecture not in ALWAYS_NON_CAUSAL,
        has_classifier=metadata.get(f"{architecture}.pooling_type") == "4"
        or f"{architecture}.classifier.output_labels" in metadata,
        pair=_pair_tokens(vocab),
        rerank_template=rerank_template.decode("utf-8", "replace") if rerank_template else "",
        tool_template=tool_template.decode("utf-8", "replace") if tool_template else "",
        quantization=_quantization(ftype),
        metadata=metadata,
        overrides=tuple(overrides),
    )


def _pair_tokens(vocab: Any) -> PairTokens:
    """llama-server's rule: BOS, query, EOS, SEP, document, EOS, each where the vocabulary adds it to texts."""
    bos, eos, sep = (
        get(vocab) for get in (llama_cpp.llama_vocab_bos, llama_cpp.llama_vocab_eos, llama_cpp.llama_vocab_sep)
    )
    begin = (bos,) if llama_cpp.llama_vocab_get_add_bos(vocab) else ()
    end = (eos if eos >= 0 else sep,) if llama_cpp.llama_vocab_get_add_eos(vocab) else ()
    middle = (sep,) if llama_cpp.llama_vocab_get_add_sep(vocab) else ()
    return PairTokens(*(tuple(id for id in ids if id >= 0) for ids in (begin, end + middle, end)))


def _shown(value: float | bool | str) -> str:
    """As llama.cpp shows values."""
    return str(value).lower() if isinstance(value, bool) else str(value)


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


def _quantization(number: int) -> str:
    """`Q4_1` and the like. The bit 1024 says that the loader guessed."""
    for name, value in vars(llama_cpp).items():
        if name.startswith("LLAMA_FTYPE_") and value == number & ~1024:
            return str(name).removeprefix("LLAMA_FTYPE_").removeprefix("MOSTLY_").removeprefix("ALL_")
    return ""


def token_piece(vocab: Any, token: int, special: bool) -> bytes:
    room = 64
    while True:
        text = ctypes.create_string_buffer(room)
        n = llama_cpp.llama_token_to_piece(vocab, token, text, room, 0, special)
        if n >= 0:
            return text.raw[:n]
        room = -n
