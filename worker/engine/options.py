"""How a file becomes a model, positions become angles, and images become rows: plain values of the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from shared.overrides import MetadataOverride
from shared.settings import ConfigError, LoadMode, WorkerSettings

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
