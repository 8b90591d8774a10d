"""What a context is made with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import llama_cpp

from shared.modelfile import LoadFailed
from worker.engine.config import EngineConfig, Pooling
from worker.engine.options import Positions


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
    offloads_cache: bool = True
    has_full_windows: bool = False
    positions: Positions = field(default_factory=Positions)
    n_ctx_flag: str = "--ctx-size"
    """What a person would change to have another `n_ctx`."""
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
            offloads_cache=config.offloads_cache,
            has_full_windows=config.has_full_windows,
            positions=config.positions,
            n_ctx_flag=config.n_ctx_flag,
        )

    @classmethod
    def to_embed(cls, config: EngineConfig, pooling: Pooling, *, n_cells: int, n_ids: int) -> Self:
        """`n_cells` beside those of a decode, which is one ubatch: more cannot be pooled."""
        n_ubatch = -(-config.n_ubatch // n_ids) * n_ids  # else llama.cpp ends the process, when it pools by the mean
        return cls(
            n_ctx=n_cells + n_ubatch,
            n_batch=n_ubatch,
            n_ubatch=n_ubatch,
            n_seq_max=n_ids,
            n_threads=config.n_threads_batch,
            n_threads_batch=config.n_threads_batch,
            flash_attention=config.flash_attention,
            offloads_cache=config.offloads_cache,
            positions=config.positions,
            n_ctx_flag=config.n_ctx_flag if n_cells else "--ubatch-size",
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
        params.type_k = _cache_type("--cache-type-k", self.cache_type_k)
        params.type_v = _cache_type("--cache-type-v", self.cache_type_v)
        params.offload_kqv = self.offloads_cache
        params.swa_full = self.has_full_windows
        _set_positions(params, self.positions)
        params.kv_unified = True
        params.no_perf = True
        params.embeddings = self.pooling is not None
        if self.pooling is not None:
            params.pooling_type = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}[self.pooling]
        return params


def _set_positions(params: Any, positions: Positions) -> None:
    if positions.scaling is not None:
        params.rope_scaling_type = {"none": 0, "linear": 1, "yarn": 2}[positions.scaling]
    named = {
        "rope_freq_base": positions.freq_base,
        "rope_freq_scale": positions.freq_scale,
        "yarn_orig_ctx": positions.yarn_orig_ctx,
        "yarn_ext_factor": positions.yarn_ext_factor,
        "yarn_attn_factor": positions.yarn_attn_factor,
        "yarn_beta_fast": positions.yarn_beta_fast,
        "yarn_beta_slow": positions.yarn_beta_slow,
    }
    for name, value in named.items():
        if value is not None:
            setattr(params, name, value)


CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


def _cache_type(flag: str, name: str) -> int:
    if name not in CACHE_TYPES:
        raise LoadFailed(f"{flag}: {name!r} is none of {', '.join(CACHE_TYPES)}")
    return {"bf16": 30}.get(name) or int(getattr(llama_cpp, f"GGML_TYPE_{name.upper()}"))
