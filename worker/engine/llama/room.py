"""Refuses what memory cannot hold, before it is tried.

llama.cpp fills a cache with zeros when it makes it, and reads a model that is not mapped: where that does not fit, the
kernel ends the process, and often others with it. What is refused here could not have been had: what is needed is
a lower bound, what is free an upper one.
"""

from __future__ import annotations

from pathlib import Path

from shared.modelfile import LoadFailed, size_of
from worker import memory
from worker.engine.llama import devices
from worker.engine.llama.facts import ModelFacts
from worker.engine.llama.need import need_of
from worker.engine.llama.params import ContextParams
from worker.engine.options import LoadOptions
from worker.memory import in_words

MAPPED = ("auto", "mmap")
"""Load modes with which a model may be larger than memory: the system reads it again and again."""
MOST_CELLS = 2**31 - 1
"""Positions are 32-bit numbers."""


def check_model(path: Path, options: LoadOptions) -> None:
    """LoadFailed when the model is to be in memory as a whole, and cannot be."""
    if options.load_mode in MAPPED:
        return
    size = size_of(path)
    if (free := _free()) is not None and size > free:
        raise LoadFailed(
            f"{path} takes {in_words(size)} of memory with --load-mode {options.load_mode}, and"
            f" {in_words(free)} are free: map it instead"
        )


def check_room(facts: ModelFacts, params: ContextParams) -> None:
    """LoadFailed when a context cannot be, with what it would take, what there is, and the flag to change."""
    if params.n_ctx > MOST_CELLS:
        raise LoadFailed(f"{params.n_ctx_flag} makes {params.n_ctx} cells, and llama.cpp counts to {MOST_CELLS}")
    need, free = need_of(facts, params), _free()
    if free is None or need <= free:
        return
    raise LoadFailed(f"{_asked(params)} take at least {in_words(need)} of memory, and {in_words(free)} are free")


def _asked(params: ContextParams) -> str:
    """What takes the memory: cells, and a mask of cells times tokens."""
    if params.n_ctx_flag == "--ubatch-size":
        return f"--ubatch-size: {params.n_ubatch} tokens at once"
    return f"{params.n_ctx_flag}: {params.n_ctx} cells, and --ubatch-size: {params.n_ubatch} tokens at once,"


def _free() -> int | None:
    free = memory.free_bytes()
    return None if free is None else free + devices.free_bytes()
