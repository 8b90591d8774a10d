"""The engine's settings as plain values, with every default resolved that needs no model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from shared.jobs import MAX_SCALE
from shared.settings import CacheType, ConfigError, WorkerSettings
from worker.demo import demo_model_path
from worker.engine.adapters import AdapterFile, as_computed
from worker.engine.grouping import UNGROUPED, Grouping
from worker.engine.lanes import AGE_S, QUANTUM_S
from worker.engine.options import FlashAttention, LoadOptions, Positions, ProjectorConfig
from worker.threads import choose_threads

Pooling = Literal["none", "mean", "cls", "last", "rank"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    model: Path
    n_ctx: int = 0
    """KV cells for all slots together; 0 takes the model's training context."""
    n_ctx_flag: str = "--ctx-size"
    """What to change when there are too many."""
    n_slots: int = 8
    n_ctx_slot: int = 0
    """Longest sequence of one slot; 0 is n_ctx // n_slots. More than that overcommits the cells."""
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 1
    n_threads_batch: int = 1
    load: LoadOptions = field(default_factory=LoadOptions)
    positions: Positions = field(default_factory=Positions)
    flash_attention: FlashAttention = "auto"
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    offloads_cache: bool = True
    """Whether the cache of a layer is where the layer is, or in plain memory."""
    has_full_windows: bool = False
    """Whether layers with a sliding window have a cache of full length too."""
    warms_up: bool = True
    pooling: Pooling | None = None
    """Of inputs; None takes the model's own."""
    embeds_only: bool = False
    """There is no context to generate with."""
    embedding_batch: Literal["auto", "on", "off"] = "auto"
    """Whether inputs share decodes."""
    context_shift: bool = False
    """Whether a full context is shifted where the request does not say."""
    shift_limit: int = 0
    """Tokens that a sequence which shifts may choose at most; 0 is ten contexts."""
    grouping: Grouping = UNGROUPED
    adapters: tuple[AdapterFile, ...] = ()
    """By their ids."""
    projector: ProjectorConfig | None = None
    """None: images are refused."""
    age_s: float = AGE_S
    quantum_s: float = QUANTUM_S

    @classmethod
    def from_settings(cls, settings: WorkerSettings) -> EngineConfig:
        """Resolve `demo` and the number of threads. ConfigError without a model, or where settings contradict."""
        settings.check()
        n_threads = settings.threads or choose_threads()
        return cls(
            model=_model(settings),
            n_ctx=settings.ctx_size or settings.kv_unified_per_slot * settings.parallel,
            n_ctx_flag="--kv-unified-per-slot"
            if settings.kv_unified_per_slot and not settings.ctx_size
            else "--ctx-size",
            n_slots=settings.parallel,
            n_ctx_slot=settings.kv_unified_per_slot,
            n_batch=settings.batch_size,
            n_ubatch=min(settings.ubatch_size, settings.batch_size),
            n_threads=n_threads,
            n_threads_batch=settings.threads_batch or n_threads,
            load=LoadOptions.from_settings(settings),
            positions=Positions.from_settings(settings),
            flash_attention=settings.flash_attn,
            cache_type_k=settings.cache_type_k,
            cache_type_v=settings.cache_type_v,
            offloads_cache=settings.kv_offload,
            has_full_windows=settings.swa_full,
            warms_up=settings.warmup,
            pooling="rank" if settings.rerank else settings.pooling,
            embeds_only=settings.embedding or settings.rerank,
            embedding_batch=settings.embedding_batch,
            context_shift=settings.context_shift,
            shift_limit=settings.shift_limit,
            grouping=_grouping(settings),
            adapters=_adapters(settings),
            projector=ProjectorConfig.from_settings(settings, n_threads),
        )


def _model(settings: WorkerSettings) -> Path:
    """The file that the settings name; of one that is still to be fetched, what they call it."""
    if settings.origin is None:
        raise ConfigError("which model? --model names a GGUF file or `demo`, --hf-repo a repository, --model-url a URL")
    return demo_model_path() if settings.model == "demo" else Path(settings.origin.text)


def _grouping(settings: WorkerSettings) -> Grouping:
    n = settings.grp_attn_n
    return Grouping(n, settings.grp_attn_w) if n > 1 else UNGROUPED


def _adapters(settings: WorkerSettings) -> tuple[AdapterFile, ...]:
    files = (*(AdapterFile(Path(path)) for path in settings.lora), *map(_scaled, settings.lora_scaled))
    return tuple(file._replace(scale=0.0) for file in files) if settings.lora_init_without_apply else files


def _scaled(text: str) -> AdapterFile:
    path, _, number = text.rpartition(":")
    try:
        scale = as_computed(float(number))
    except ValueError:
        scale = math.nan
    if not path or not abs(scale) <= MAX_SCALE:  # which NaN is not
        raise ConfigError(
            f"--lora-scaled: {text!r} is not a file and its scale, PATH:SCALE, of at most {MAX_SCALE:g} either way"
        )
    return AdapterFile(Path(path), scale)
