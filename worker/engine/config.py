"""The engine's settings as plain values, with every default resolved that needs no model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.settings import ConfigError, WorkerSettings
from worker.demo import demo_model_path
from worker.engine.adapters import AdapterFile, as_computed
from worker.engine.grouping import UNGROUPED, Grouping
from worker.engine.lanes import AGE_S, QUANTUM_S
from worker.threads import choose_threads

Pooling = Literal["mean", "cls", "last"]
FlashAttention = Literal["on", "off", "auto"]


@dataclass(frozen=True, slots=True)
class ProjectorConfig:
    """What turns images into rows."""

    path: Path
    n_threads: int = 1
    uses_gpu: bool = True
    flash_attention: FlashAttention = "auto"
    n_min_tokens: int = -1
    """Of an image, where the projector leaves the choice; -1 for its own."""
    n_max_tokens: int = -1

    @classmethod
    def from_settings(cls, settings: WorkerSettings, n_threads: int) -> ProjectorConfig | None:
        """None without a file. ConfigError when what is asked for does not go together."""
        if settings.mmproj is None or not settings.mmproj_auto:
            return None
        if settings.grp_attn_n > 1:
            raise ConfigError("--mmproj and --grp-attn-n exclude each other: rows of images share no positions")
        n_min, n_max = settings.image_min_tokens, settings.image_max_tokens
        if 0 < n_max < n_min:
            raise ConfigError(f"--image-max-tokens is {n_max}, less than --image-min-tokens, {n_min}")
        return cls(
            settings.mmproj,
            n_threads=n_threads,
            uses_gpu=settings.mmproj_offload,
            flash_attention=settings.flash_attn,
            n_min_tokens=n_min or -1,
            n_max_tokens=n_max or -1,
        )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    model: Path
    n_ctx: int = 0
    """KV cells for all slots together; 0 takes the model's training context."""
    n_slots: int = 8
    n_ctx_slot: int = 0
    """Longest sequence of one slot; 0 is n_ctx // n_slots. More than that overcommits the cells."""
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 1
    n_threads_batch: int = 1
    n_gpu_layers: int = -1
    flash_attention: FlashAttention = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    pooling: Pooling | None = None
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
        """Resolve `demo` and the number of threads. ConfigError when no model is named."""
        if not settings.model:
            raise ConfigError("--model is needed: a GGUF file, or `demo`")
        n_threads = settings.threads or choose_threads()
        return cls(
            model=demo_model_path() if settings.model == "demo" else Path(settings.model),
            n_ctx=settings.ctx_size or settings.kv_unified_per_slot * settings.parallel,
            n_slots=settings.parallel,
            n_ctx_slot=settings.kv_unified_per_slot,
            n_batch=settings.batch_size,
            n_ubatch=min(settings.ubatch_size, settings.batch_size),
            n_threads=n_threads,
            n_threads_batch=settings.threads_batch or n_threads,
            n_gpu_layers=settings.n_gpu_layers,
            flash_attention=settings.flash_attn,
            cache_type_k=settings.cache_type_k,
            cache_type_v=settings.cache_type_v,
            pooling=settings.pooling,
            context_shift=settings.context_shift,
            shift_limit=settings.shift_limit,
            grouping=_grouping(settings),
            adapters=_adapters(settings),
            projector=ProjectorConfig.from_settings(settings, n_threads),
        )


def _grouping(settings: WorkerSettings) -> Grouping:
    n, width = settings.grp_attn_n, settings.grp_attn_w
    if n == 1:
        return UNGROUPED
    if width % n:
        raise ConfigError(f"--grp-attn-w is {width}, and must be a multiple of --grp-attn-n, {n}")
    if settings.context_shift:
        raise ConfigError(
            "--context-shift and --grp-attn-n exclude each other: what shares a position cannot be shifted"
        )
    return Grouping(n, width)


def _adapters(settings: WorkerSettings) -> tuple[AdapterFile, ...]:
    files = (*(AdapterFile(Path(path)) for path in settings.lora), *map(_scaled, settings.lora_scaled))
    return tuple(file._replace(scale=0.0) for file in files) if settings.lora_init_without_apply else files


def _scaled(text: str) -> AdapterFile:
    path, _, number = text.rpartition(":")
    try:
        scale = as_computed(float(number))
    except ValueError:
        scale = math.nan
    if not path or not math.isfinite(scale):
        raise ConfigError(f"--lora-scaled: {text!r} is not a file and its scale, PATH:SCALE")
    return AdapterFile(Path(path), scale)
