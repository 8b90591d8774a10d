"""The engine's settings as plain values, with every default resolved that needs no model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from shared.overrides import MetadataOverride
from shared.settings import CacheType, ConfigError, LoadMode, WorkerSettings
from worker.demo import demo_model_path
from worker.engine.adapters import AdapterFile, as_computed
from worker.engine.grouping import UNGROUPED, Grouping
from worker.engine.lanes import AGE_S, QUANTUM_S
from worker.threads import choose_threads

Pooling = Literal["mean", "cls", "last"]
FlashAttention = Literal["on", "off", "auto"]
SplitMode = Literal["none", "layer", "row", "tensor"]
Numa = Literal["distribute", "isolate", "numactl"]
RopeScaling = Literal["none", "linear", "yarn"]

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Names of tensors that are weights of experts; `ch` are those that chunks of tokens share."""
CPU = "CPU"
"""Name of the buffers in plain memory."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model's file becomes a model."""

    n_gpu_layers: int = -1
    devices: tuple[str, ...] = ()
    """Names; none for all that there are, `none` alone for none."""
    split_mode: SplitMode = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    placements: tuple[tuple[str, str], ...] = ()
    """Patterns of tensors' names, and the buffers that those go to."""
    load_mode: LoadMode = "auto"
    overrides: tuple[MetadataOverride, ...] = ()
    checks_tensors: bool = False
    numa: Numa | None = None

    @classmethod
    def from_settings(cls, settings: WorkerSettings) -> Self:
        return cls(
            n_gpu_layers=settings.n_gpu_layers,
            devices=settings.device,
            split_mode=settings.split_mode,
            tensor_split=settings.tensor_split,
            main_gpu=settings.main_gpu,
            placements=_placements(settings),
            load_mode=_load_mode(settings),
            overrides=tuple(map(MetadataOverride.parse, settings.override_kv)),
            checks_tensors=settings.check_tensors,
            numa=settings.numa,
        )


@dataclass(frozen=True, slots=True)
class Positions:
    """How positions become angles (RoPE, and YaRN beyond the context of the training); None is the model's own."""

    scaling: RopeScaling | None = None
    freq_base: float | None = None
    freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None

    @classmethod
    def from_settings(cls, settings: WorkerSettings) -> Self:
        return cls(
            scaling=settings.rope_scaling,
            freq_base=settings.rope_freq_base,
            freq_scale=1 / settings.rope_scale if settings.rope_scale else settings.rope_freq_scale,
            yarn_orig_ctx=settings.yarn_orig_ctx,
            yarn_ext_factor=settings.yarn_ext_factor,
            yarn_attn_factor=settings.yarn_attn_factor,
            yarn_beta_fast=settings.yarn_beta_fast,
            yarn_beta_slow=settings.yarn_beta_slow,
        )


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
            # Decodes go on beside it. On two CPUs two threads encode no faster than one while there are some, and each
            # more makes decodes stutter.
            n_threads=max(1, n_threads // 2),
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
            pooling=settings.pooling,
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


def _load_mode(settings: WorkerSettings) -> LoadMode:
    match settings.mmap, settings.mlock:
        case True, True:
            return "mmap+mlock"
        case False, True:
            return "mlock"
        case False, False:
            return "none"
    return settings.load_mode


def _placements(settings: WorkerSettings) -> tuple[tuple[str, str], ...]:
    """The first that fits a tensor decides."""
    own = [(pattern, buffer) for pattern, _, buffer in (text.rpartition("=") for text in settings.override_tensor)]
    experts = [(EXPERTS, CPU)] if settings.cpu_moe else []
    layers = [(rf"blk\.{layer}{EXPERTS}", CPU) for layer in range(settings.n_cpu_moe)]
    return (*own, *experts, *layers)


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
