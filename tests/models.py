"""Models for tests: tiny random ones, written in about a second, and the demo model.

Their weights are 32-bit floats, so that nothing is quantized and a batch computes what its members compute alone.
"""

from __future__ import annotations

import atexit
import shutil
import struct
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from numpy.typing import NDArray

from worker.demo import demo_model_path

__all__ = [
    "demo_model_path",
    "tiny_model",
    "write_adapter",
    "write_byte_model",
    "write_calling_model",
    "write_demo_vocab_model",
    "write_encoder_model",
    "write_infill_model",
    "write_judging_model",
    "write_projector",
    "write_recurrent_model",
    "write_reranker_model",
    "write_sliding_model",
    "write_split",
    "write_two_dimensional_model",
]

N_EMBD = 64
N_HEADS = 2
N_FF = 96
BYTE_EOS = 257
N_BYTE_VOCAB = 258
FILL_TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
PAIR_TOKENS = ("<s>", "<sep>")
RERANK_TEMPLATE = "Q: {query}\nD: {document}<|end|>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def write_byte_model(path: Path, *, n_layers: int = 2, n_ctx_train: int = 2048, seed: int = 0) -> Path:
    """A llama model whose token ids are bytes: 0 to 255, then `aa` (256) and the end of a sequence (257)."""
    writer = _llama_writer(path, n_layers, n_ctx_train, N_BYTE_VOCAB)
    _add_byte_vocab(writer)
    return _finish_llama(writer, path, n_layers, N_BYTE_VOCAB, seed)


def write_infill_model(path: Path, *, n_layers: int = 1, n_ctx_train: int = 2048, seed: int = 0) -> Path:
    """The same with tokens for what stands between two texts: FILL_TOKENS, in this order, from 258 on."""
    n_vocab = N_BYTE_VOCAB + len(FILL_TOKENS)
    writer = _llama_writer(path, n_layers, n_ctx_train, n_vocab)
    _add_byte_vocab(writer, FILL_TOKENS)
    for token, name in enumerate(("pre", "suf", "mid", "rep", "sep"), N_BYTE_VOCAB):
        writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", token)
    return _finish_llama(writer, path, n_layers, n_vocab, seed)


def write_calling_model(path: Path, template: str, controls: Sequence[str] = (), *, seed: int = 0) -> Path:
    """The same with a chat template, and with tokens for the marks in it: `controls`, from 258 on."""
    n_layers, n_vocab = 1, N_BYTE_VOCAB + len(controls)
    writer = _llama_writer(path, n_layers, 8192, n_vocab)
    _add_byte_vocab(writer, controls, template=template)
    return _finish_llama(writer, path, n_layers, n_vocab, seed)


def write_recurrent_model(path: Path, *, n_layers: int = 2, n_ctx_train: int = 2048, seed: int = 0) -> Path:
    """A Mamba model with the same tokens: one state for all that a sequence has read, which cannot lose its end."""
    writer = _writer(path, "mamba", n_layers, n_ctx_train, N_BYTE_VOCAB)
    n_inner, n_state, n_conv, n_dt = 2 * N_EMBD, 16, 4, 4
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_inner_size(n_inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_conv_kernel(n_conv)
    writer.add_ssm_time_step_rank(n_dt)
    _add_byte_vocab(writer)
    weights = _Weights(writer, seed)
    weights.add_ends(N_BYTE_VOCAB)
    for layer in range(n_layers):
        block = f"blk.{layer}"
        weights.add_ones(f"{block}.attn_norm.weight", N_EMBD)
        weights.add(f"{block}.ssm_in.weight", 2 * n_inner, N_EMBD)
        weights.add(f"{block}.ssm_conv1d.weight", n_inner, n_conv)
        weights.add(f"{block}.ssm_conv1d.bias", n_inner, scale=0.1)
        weights.add(f"{block}.ssm_x.weight", n_dt + 2 * n_state, n_inner)
        weights.add(f"{block}.ssm_dt.weight", n_inner, n_dt)
        weights.add(f"{block}.ssm_dt.bias", n_inner, scale=0.1)
        # What a state forgets with each token: little, so that a text depends on all of its beginning.
        weights.add_values(f"{block}.ssm_a", np.tile(-np.arange(1, n_state + 1) / 64, (n_inner, 1)))
        weights.add_ones(f"{block}.ssm_d", n_inner)
        weights.add(f"{block}.ssm_out.weight", N_EMBD, n_inner)
    return _finish(writer, path)


def write_sliding_model(
    path: Path, *, n_layers: int = 2, n_ctx_train: int = 2048, window: int = 16, seed: int = 0
) -> Path:
    """A Gemma 2 model with the same tokens: every other layer sees no more than a window of the last tokens."""
    writer = _writer(path, "gemma2", n_layers, n_ctx_train, N_BYTE_VOCAB)
    _add_attention(writer)
    writer.add_key_length(N_EMBD // N_HEADS)
    writer.add_value_length(N_EMBD // N_HEADS)
    writer.add_sliding_window(window)
    _add_byte_vocab(writer)
    weights = _Weights(writer, seed)
    weights.add("token_embd.weight", N_BYTE_VOCAB, N_EMBD, scale=N_EMBD**-0.5)
    weights.add_ones("output_norm.weight", N_EMBD)
    for layer in range(n_layers):
        weights.add_block(layer)
        # What a block adds outweighs the token itself, which the output would name again: the two ends share weights.
        weights.add_values(f"blk.{layer}.post_attention_norm.weight", np.full(N_EMBD, 8.0))
        weights.add_values(f"blk.{layer}.post_ffw_norm.weight", np.full(N_EMBD, 8.0))
    return _finish(writer, path)


def write_two_dimensional_model(path: Path, *, n_layers: int = 2, n_ctx_train: int = 2048, seed: int = 0) -> Path:
    """A Qwen2-VL model with the same tokens: rows of images have positions in several dimensions (M-RoPE)."""
    writer = _writer(path, "qwen2vl", n_layers, n_ctx_train, N_BYTE_VOCAB)
    _add_attention(writer)
    writer.add_rope_dimension_sections([4, 6, 6, 0])
    _add_byte_vocab(writer)
    return _finish_llama(writer, path, n_layers, N_BYTE_VOCAB, seed)


def write_encoder_model(path: Path, *, n_layers: int = 2, n_ctx_train: int = 512, seed: int = 0) -> Path:
    """A BERT model with the same tokens: it has no cache and generates nothing."""
    writer = _encoder_writer(path, gguf.PoolingType.MEAN, n_layers, n_ctx_train, N_BYTE_VOCAB)
    _add_byte_vocab(writer)
    _add_encoder(_Weights(writer, seed), N_BYTE_VOCAB, n_layers, n_ctx_train)
    return _finish(writer, path)


def write_reranker_model(path: Path, *, n_layers: int = 2, n_ctx_train: int = 512, seed: int = 0) -> Path:
    """The same with a classifier, and with what its vocabulary puts around texts: PAIR_TOKENS, from 258 on."""
    n_vocab = N_BYTE_VOCAB + len(PAIR_TOKENS)
    writer = _encoder_writer(path, gguf.PoolingType.RANK, n_layers, n_ctx_train, n_vocab)
    _add_byte_vocab(writer, PAIR_TOKENS, adds_bos=True)
    writer.add_bos_token_id(N_BYTE_VOCAB)
    writer.add_sep_token_id(N_BYTE_VOCAB + 1)
    writer.add_add_sep_token(True)
    writer.add_add_eos_token(True)
    weights = _Weights(writer, seed)
    _add_encoder(weights, n_vocab, n_layers, n_ctx_train)
    weights.add("cls.weight", N_EMBD, N_EMBD)
    weights.add("cls.bias", N_EMBD, scale=0.1)
    weights.add("cls.output.weight", 1, N_EMBD)
    weights.add("cls.output.bias", 1, scale=0.1)
    return _finish(writer, path)


def write_judging_model(path: Path, *, n_layers: int = 1, n_ctx_train: int = 2048, seed: int = 0) -> Path:
    """A causal model that reranks: with a classifier over its last token, and a template for what it judges."""
    n_vocab = N_BYTE_VOCAB + 1
    writer = _writer(path, "qwen3", n_layers, n_ctx_train, n_vocab)
    _add_attention(writer)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_classifier_output_labels(["yes", "no"])
    _add_byte_vocab(writer, ["<|end|>"])
    writer.add_chat_template([{"name": "rerank", "template": RERANK_TEMPLATE}])
    weights = _Weights(writer, seed)
    weights.add("cls.output.weight", 2, N_EMBD)
    weights.add_ends(n_vocab)
    for layer in range(n_layers):
        weights.add_block(layer)
        weights.add_ones(f"blk.{layer}.attn_q_norm.weight", N_EMBD // N_HEADS)
        weights.add_ones(f"blk.{layer}.attn_k_norm.weight", N_EMBD // N_HEADS)
    return _finish(writer, path)


def _encoder_writer(
    path: Path, pooling: gguf.PoolingType, n_layers: int, n_ctx_train: int, n_vocab: int
) -> gguf.GGUFWriter:
    writer = _writer(path, "bert", n_layers, n_ctx_train, n_vocab)
    _add_attention(writer)
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    writer.add_token_type_count(2)
    return writer


def _add_encoder(weights: _Weights, n_vocab: int, n_layers: int, n_ctx_train: int) -> None:
    weights.add("token_embd.weight", n_vocab, N_EMBD, scale=1.0)
    weights.add("token_types.weight", 2, N_EMBD, scale=0.1)
    weights.add("position_embd.weight", n_ctx_train, N_EMBD, scale=0.3)
    weights.add_norm("token_embd_norm")
    for layer in range(n_layers):
        weights.add_norm(f"blk.{layer}.attn_output_norm")
        weights.add_norm(f"blk.{layer}.layer_output_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights.add(f"blk.{layer}.{name}.weight", N_EMBD, N_EMBD)
        weights.add(f"blk.{layer}.ffn_up.weight", N_FF, N_EMBD)
        weights.add(f"blk.{layer}.ffn_down.weight", N_EMBD, N_FF)


ProjectorKind = Literal["mlp", "gemma3", "qwen2vl_merger", "idefics3"]


def write_projector(
    path: Path, kind: ProjectorKind = "mlp", *, n_out: int = N_EMBD, sizes: Sequence[int] = (), seed: int = 0
) -> Path:
    """A vision transformer and what projects to a width of n_out. Pictures become 32 x 32 pixels: `mlp` makes 16 rows
    of them that see those before them, `gemma3` makes 4 that see each other, between `<start_of_image>` and
    `<end_of_image>`. `qwen2vl_merger` keeps their shape: a row for each 16 x 16 pixels, 8 at least, which for a model
    of `write_two_dimensional_model` lie in two dimensions, between `<|vision_start|>` and `<|vision_end|>`. `idefics3`
    wants tokens around an image that the models here do not have. With `sizes`, widths and heights by turns, `mlp` cuts
    large pictures into slices of 32 x 32 pixels, one of which shows all."""
    n_embd, n_ff, n_layers, image_size, patch_size = 32, 48, 2, 32, 8
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(kind)
    writer.add_vision_use_gelu(True)
    writer.add_vision_embedding_length(n_embd)
    writer.add_vision_feed_forward_length(n_ff)
    writer.add_vision_block_count(n_layers)
    writer.add_vision_head_count(2)
    writer.add_vision_attention_layernorm_eps(1e-5)
    writer.add_vision_projection_dim(n_out)
    writer.add_vision_image_size(image_size)
    writer.add_vision_patch_size(patch_size)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
    if sizes:
        writer.add_array("clip.vision.image_grid_pinpoints", list(sizes))
    weights = _Weights(writer, seed)
    for name in ("weight", "weight.1") if kind == "qwen2vl_merger" else ("weight",):
        weights.add(f"v.patch_embd.{name}", n_embd, 3, patch_size, patch_size, scale=(3 * patch_size**2) ** -0.5)
    if kind != "qwen2vl_merger":
        weights.add("v.position_embd.weight", (image_size // patch_size) ** 2, n_embd, scale=0.1)
    for layer in range(n_layers):
        block = f"v.blk.{layer}"
        for name in ("ln1", "ln2"):
            weights.add_ones(f"{block}.{name}.weight", n_embd)
            weights.add(f"{block}.{name}.bias", n_embd, scale=0.1)
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            weights.add(f"{block}.{name}.weight", n_embd, n_embd)
            weights.add(f"{block}.{name}.bias", n_embd, scale=0.1)
        weights.add(f"{block}.ffn_up.weight", n_ff, n_embd)
        weights.add(f"{block}.ffn_down.weight", n_embd, n_ff)
    match kind:
        case "mlp":
            layers = {"mm.0": (n_out, n_embd), "mm.2": (n_out, n_out)}
        case "qwen2vl_merger":
            layers = {"mm.0": (4 * n_embd, 4 * n_embd), "mm.2": (n_out, 4 * n_embd)}
        case "idefics3":
            layers = {}
            writer.add_vision_projector_scale_factor(2)
            weights.add("mm.model.fc.weight", n_out, 4 * n_embd)
        case "gemma3":
            layers = {}
            writer.add_vision_projector_scale_factor(2)
            weights.add_ones("mm.soft_emb_norm.weight", n_embd)
            weights.add("mm.input_projection.weight", n_embd, n_out, scale=n_embd**-0.5)
    for name, shape in layers.items():
        weights.add(f"{name}.weight", *shape)
        weights.add(f"{name}.bias", shape[0], scale=0.1)
    return _finish(writer, path)


def write_adapter(
    path: Path,
    *,
    architecture: str = "llama",
    tensor: str = "attn_output",
    n_layers: int = 2,
    n_in: int = N_EMBD,
    n_out: int = N_EMBD,
    alpha: float = 8.0,
    kind: str = "lora",
    invocation: Sequence[int] = (),
    seed: int = 1,
) -> Path:
    """A LoRA adapter of rank 4 for one tensor of each block: enough to change what the byte model says. With an
    `invocation` it is one that begins to work where these tokens stand."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", alpha)
    if invocation:
        kinds = gguf.GGUFValueType
        writer.add_key_value("adapter.alora.invocation_tokens", list(invocation), kinds.ARRAY, sub_type=kinds.UINT32)
    weights, rank = _Weights(writer, seed), 4
    for layer in range(n_layers):
        weights.add(f"blk.{layer}.{tensor}.weight.lora_a", rank, n_in)
        weights.add(f"blk.{layer}.{tensor}.weight.lora_b", n_out, rank)
    return _finish(writer, path)


def write_demo_vocab_model(path: Path, *, n_layers: int = 1, n_ctx_train: int = 8192, seed: int = 0) -> Path:
    """A llama model with the tokenizer and the chat template of the demo model."""
    metadata = read_metadata(demo_model_path())
    n_vocab = len(metadata["tokenizer.ggml.tokens"])
    writer = _llama_writer(path, n_layers, n_ctx_train, n_vocab)
    for name, value in metadata.items():
        if name.startswith("tokenizer."):
            _add(writer, name, value)
    return _finish_llama(writer, path, n_layers, n_vocab, seed)


def write_split(path: Path, n_tensors: int = 8) -> list[Path]:
    """The parts of a byte model, with so many tensors each; llama.cpp loads all by the first one's name."""
    whole = write_byte_model(path)
    reader = gguf.GGUFReader(whole)
    groups = [reader.tensors[at : at + n_tensors] for at in range(0, len(reader.tensors), n_tensors)]
    parts = []
    for number, group in enumerate(groups):
        part = path.with_name(f"{path.stem}-{number + 1:05}-of-{len(groups):05}.gguf")
        writer = gguf.GGUFWriter(part, "llama")
        if number == 0:
            for name, value in read_metadata(whole).items():
                if name != "general.architecture":
                    _add(writer, name, value)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", len(groups))
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in group:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        parts.append(_finish(writer, part))
    whole.unlink()
    return parts


@cache
def tiny_model() -> Path:
    """A model with the demo model's tokenizer, written once in this process."""
    folder = Path(tempfile.mkdtemp(prefix="slotstream-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_demo_vocab_model(folder / "tiny.gguf")


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case list():
            writer.add_array(name, value)
        case _:
            writer.add_string(name, value)


def read_metadata(path: Path) -> dict[str, Any]:
    """Keys and values of a GGUF file (version 3); a hundred times as quick as `gguf.GGUFReader` on long lists."""
    content = path.read_bytes()
    _, _, _, n_keys = struct.unpack_from("<IIQQ", content)
    at = 24

    def read(kind: int) -> Any:
        nonlocal at
        if kind == gguf.GGUFValueType.STRING:
            (length,) = struct.unpack_from("<Q", content, at)
            at += 8 + length
            return content[at - length : at].decode()
        if kind == gguf.GGUFValueType.ARRAY:
            item, length = struct.unpack_from("<IQ", content, at)
            at += 12
            return [read(item) for _ in range(length)]
        code = "<" + "BbHhIif?__Qqd"[kind]
        (value,) = struct.unpack_from(code, content, at)
        at += struct.calcsize(code)
        return value

    metadata: dict[str, Any] = {}
    for _ in range(n_keys):
        name = read(gguf.GGUFValueType.STRING)
        at += 4
        metadata[name] = read(struct.unpack_from("<I", content, at - 4)[0])
    return metadata


def _byte_characters() -> list[str]:
    """The characters that stand for bytes in vocabularies of the kind of GPT-2."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {byte: chr(byte) for byte in visible}
    characters |= {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    return [characters[byte] for byte in range(256)]


def _add_byte_vocab(
    writer: gguf.GGUFWriter, more: Sequence[str] = (), *, adds_bos: bool = False, template: str = CHAT_TEMPLATE
) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*_byte_characters(), "aa", "</s>", *more])
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * (1 + len(more)))
    writer.add_token_merges(["a a"])
    writer.add_eos_token_id(BYTE_EOS)
    writer.add_add_bos_token(adds_bos)
    writer.add_chat_template(template)


def _writer(path: Path, architecture: str, n_layers: int, n_ctx_train: int, n_vocab: int) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(n_layers)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(n_vocab)
    writer.add_file_type(0)
    return writer


def _llama_writer(path: Path, n_layers: int, n_ctx_train: int, n_vocab: int) -> gguf.GGUFWriter:
    writer = _writer(path, "llama", n_layers, n_ctx_train, n_vocab)
    _add_attention(writer)
    return writer


def _add_attention(writer: gguf.GGUFWriter) -> None:
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_HEADS)
    writer.add_rope_dimension_count(N_EMBD // N_HEADS)


class _Weights:
    """Random tensors; shapes are numpy's, with the input last."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)

    def add(self, name: str, *shape: int, scale: float | None = None) -> None:
        scale = shape[-1] ** -0.5 if scale is None else scale
        self.add_values(name, self._random.standard_normal(shape) * scale)

    def add_ones(self, name: str, n: int) -> None:
        self.add_values(name, np.ones(n))

    def add_values(self, name: str, values: NDArray[np.float64]) -> None:
        self._writer.add_tensor(name, values.astype(np.float32))

    def add_norm(self, name: str) -> None:
        self.add_ones(f"{name}.weight", N_EMBD)
        self.add(f"{name}.bias", N_EMBD, scale=0.1)

    def add_block(self, layer: int) -> None:
        """Attention and what follows it, as llama has them."""
        self.add_ones(f"blk.{layer}.attn_norm.weight", N_EMBD)
        self.add_ones(f"blk.{layer}.ffn_norm.weight", N_EMBD)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            self.add(f"blk.{layer}.{name}.weight", N_EMBD, N_EMBD)
        self.add(f"blk.{layer}.ffn_gate.weight", N_FF, N_EMBD)
        self.add(f"blk.{layer}.ffn_up.weight", N_FF, N_EMBD)
        self.add(f"blk.{layer}.ffn_down.weight", N_EMBD, N_FF)

    def add_ends(self, n_vocab: int) -> None:
        self.add("token_embd.weight", n_vocab, N_EMBD, scale=1.0)
        self.add("output.weight", n_vocab, N_EMBD, scale=2 * N_EMBD**-0.5)
        self.add_ones("output_norm.weight", N_EMBD)


def _finish_llama(writer: gguf.GGUFWriter, path: Path, n_layers: int, n_vocab: int, seed: int) -> Path:
    weights = _Weights(writer, seed)
    weights.add_ends(n_vocab)
    for layer in range(n_layers):
        weights.add_block(layer)
    return _finish(writer, path)


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
