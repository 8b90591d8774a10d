"""LoRA adapters in memory beside their model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import llama_cpp

from shared.modelfile import LoadFailed, check_kind
from worker.engine.llama import backend

_Pointer = llama_cpp.llama_adapter_lora_p_ctypes


class AdapterFacts(NamedTuple):
    """What an adapter's file says of itself, if anything."""

    task_name: str = ""
    prompt_prefix: str = ""


class LoadedAdapters:
    """Those of one model, which frees them before itself; contexts that use them are gone by then.

    They are added while it is computed: the model's own weights stay as they are in the file, and mapped from it.
    Contexts must be opened after they are loaded, since their graphs are given room for them then.
    """

    def __init__(self, pointers: Sequence[Any] = ()) -> None:
        self._pointers = tuple(pointers)
        self._array = (_Pointer * len(pointers))(*pointers)
        self.facts = tuple(_facts(pointer) for pointer in pointers)

    @classmethod
    def load(cls, model: Any, paths: Sequence[Path]) -> Self:
        """Of a model that is loaded. LoadFailed when one is missing, or is none for this model."""
        pointers: list[Any] = []
        try:
            for path in paths:
                pointers.append(_load(model, path))
        except LoadFailed:
            _free(pointers)
            raise
        return cls(pointers)

    def __len__(self) -> int:
        return len(self._pointers)

    def use(self, context: Any, scales: Sequence[float]) -> None:
        """Add so much of each to what the context computes from now on; nothing of those with 0. One call for all:
        each call replaces what the one before it said."""
        assert len(scales) == len(self._pointers)
        llama_cpp.llama_set_adapters_lora(context, self._array, len(scales), (ctypes.c_float * len(scales))(*scales))

    def close(self) -> None:
        pointers, self._pointers = self._pointers, ()
        _free(pointers)


def _load(model: Any, path: Path) -> Any:
    check_kind(path, "--lora", "LoRA adapter")
    backend.forget_errors()
    pointer = llama_cpp.llama_adapter_lora_init(model, bytes(path))
    if not pointer:
        _, _, reason = backend.because().removeprefix(": ").rpartition("failed to apply lora adapter: ")
        reason = reason.removesuffix(", but got:")  # nothing, as in the file of a model
        raise LoadFailed(f"{path} is no LoRA adapter for this model: {reason or 'llama.cpp cannot read it'}")
    if llama_cpp.llama_adapter_get_alora_n_invocation_tokens(pointer):
        _free([pointer])
        raise LoadFailed(f"{path} is an activated LoRA, which works from certain tokens on: that is not supported")
    return pointer


def _facts(pointer: Any) -> AdapterFacts:
    return AdapterFacts(_text(pointer, b"adapter.lora.task_name"), _text(pointer, b"adapter.lora.prompt_prefix"))


def _text(pointer: Any, key: bytes) -> str:
    """The value of a key; empty when there is none."""
    room = 256
    while True:
        text = ctypes.create_string_buffer(room)
        n: int = llama_cpp.llama_adapter_meta_val_str(pointer, key, text, room)
        if n < room:
            return text.value.decode("utf-8", "replace")
        room = n + 1


def _free(pointers: Sequence[Any]) -> None:
    for pointer in pointers:
        llama_cpp.llama_adapter_lora_free(pointer)
