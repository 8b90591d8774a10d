"""What a context takes of memory at the least.

All figures are lower bounds: what a model's metadata leaves open counts nothing. Pure.
"""

from __future__ import annotations

import json

from worker.engine.llama.facts import ModelFacts
from worker.engine.llama.params import ContextParams

CELL_BYTES = 40
"""What llama.cpp notes of a cell: its position, its shift, and a bit for each of 256 sequences."""
_VALUE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
    "q4_1": 20 / 32,
    "iq4_nl": 18 / 32,
    "q5_0": 22 / 32,
    "q5_1": 24 / 32,
}
"""Bytes of one value in ggml's blocks of 32."""


def need_of(facts: ModelFacts, params: ContextParams) -> int:
    """Bytes, counted as `llama_kv_cache` does: in each layer and cell `head_count_kv` times `key_length` and
    `value_length`; beside it a mask of cells times tokens of a ubatch, and two rows of the model's width for each."""
    shape = _Shape(facts)
    n_cells = params.n_ctx if shape.has_cache else 0
    n_heads = shape.n_heads(params.has_full_windows)
    per_head = shape.head_width("key_length") * _VALUE_BYTES[params.cache_type_k]
    per_head += shape.head_width("value_length") * _VALUE_BYTES[params.cache_type_v]
    per_cell = CELL_BYTES + n_heads * per_head
    per_token = 2 * 4 * facts.n_embd + (2 * n_cells if n_heads else 0)
    return round(n_cells * per_cell + params.n_ubatch * per_token)


class _Shape:
    """What a model's metadata says of its attention; keys as in the GGUF specification."""

    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts

    @property
    def has_cache(self) -> bool:
        """Neither has a model whose state is recurrent alone, nor one that looks at all tokens at once."""
        return self._text("attention.causal") != "false" and not self._facts.is_recurrent

    def n_heads(self, has_full_windows: bool) -> int:
        """Of keys in all layers whose cache is as long as the context."""
        if any(key.startswith(f"{self._facts.architecture}.attention.compress") for key in self._facts.metadata):
            return 0  # several cells become one, by rules that only the model's code knows
        n_layers = self._number("block_count") - self._number("nextn_predict_layers")
        n_layers -= self._number("attention.shared_kv_layers")
        heads = self._numbers("attention.head_count_kv") or self._numbers("attention.head_count")
        layers = heads[:n_layers] if len(heads) > 1 else heads * max(n_layers, 0)
        if self._facts.n_swa and not has_full_windows:
            slides = self._numbers("attention.sliding_window_pattern")
            full = [head for head, slide in zip(layers, slides, strict=False) if not slide]
            return sum(full) if len(slides) > 1 else 0
        if self._facts.is_hybrid and len(heads) == 1:
            interval = self._number("full_attention_interval")
            return sum(layers[interval - 1 :: interval]) if interval else 0
        return sum(layers)

    def head_width(self, name: str) -> int:
        """Values of one head, or 0 where one is kept for another: latent attention has no values of its own."""
        if name == "value_length" and self._number("attention.kv_lora_rank"):
            return 0
        n_heads = max(self._numbers("attention.head_count"), default=0)
        return self._number(f"attention.{name}") or (self._facts.n_embd // n_heads if n_heads else 0)

    def _text(self, key: str) -> str:
        return self._facts.metadata.get(f"{self._facts.architecture}.{key}", "")

    def _number(self, key: str) -> int:
        numbers = self._numbers(key)
        return numbers[0] if len(numbers) == 1 else 0

    def _numbers(self, key: str) -> list[int]:
        """One, or one for each layer."""
        try:
            value = json.loads(self._text(key) or "[]")
        except ValueError:
            return []
        values = value if isinstance(value, list) else [value]
        return [int(each) for each in values if isinstance(each, int | float)]
