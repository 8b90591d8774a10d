"""How a served model is described: as llama.cpp lists it for clients of OpenAI, and in the words of ollama.

Knows no routes and no workers, only cards.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from shared.bus import ModelCard


def model_json(card: ModelCard, created: int) -> dict[str, Any]:
    """OpenAI's object, with llama.cpp's `meta`. `created` is when the first worker that serves it was started, Unix
    seconds."""
    return {
        "id": card.name,
        "aliases": [card.name, *card.aliases],
        "tags": [],
        "object": "model",
        "created": created,
        "owned_by": "llamacpp",
        "meta": {
            "vocab_type": card.vocab_type,
            "n_vocab": card.n_vocab,
            "n_ctx": card.n_ctx,
            "n_ctx_train": card.n_ctx_train,
            "n_embd": card.n_embd,
            "n_params": card.n_params,
            "size": card.size,
            "ftype": card.ftype,
        },
    }


def listed_json(card: ModelCard) -> dict[str, Any]:
    """The object that llama.cpp adds to the list for clients of ollama; there it leaves empty what we know."""
    return {
        "name": card.name,
        "model": card.name,
        "modified_at": modified_at(card),
        "size": str(card.size),
        "digest": "",
        "type": "model",
        "description": card.description,
        "tags": [""],
        "capabilities": _capabilities(card),
        "parameters": "",
        "details": details_json(card),
    }


def details_json(card: ModelCard) -> dict[str, Any]:
    """ollama's `details`."""
    return {
        "parent_model": "",
        "format": "gguf",
        "family": card.architecture,
        "families": [card.architecture],
        "parameter_size": parameter_size(card.n_params),
        "quantization_level": card.quantization,
    }


def capabilities(card: ModelCard) -> list[str]:
    """In ollama's words; `rerank`, which it does not know, in Jina's."""
    if not card.can_generate:
        return ["rerank" if card.pooling == "rank" else "embedding"]
    more = {
        "vision": card.has_vision,
        "tools": card.can_call,
        "insert": card.can_infill,
        "thinking": card.can_reason,
    }
    return ["completion", *(word for word, can in more.items() if can)]


def modified_at(card: ModelCard) -> str:
    """When the file was changed last, by RFC 3339, which has four digits for a year; empty while nobody knows."""
    if not card.modified_at:
        return ""
    try:
        return datetime.fromtimestamp(card.modified_at, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return ""


def parameter_size(n_params: int) -> str:
    """As ollama writes it, `134.52M` and `8.0B`: a billion with one place, a million with two, whole ones with none."""
    for size, letter, places in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if n_params >= size:
            return f"{n_params / size:.{places if n_params % size else 0}f}{letter}"
    return str(n_params)


def _capabilities(card: ModelCard) -> list[str]:
    """In llama.cpp's words, which has none for what does not generate text: ollama's, and Jina's for its path."""
    if not card.can_generate:
        return capabilities(card)
    return ["completion", "multimodal"] if card.has_vision else ["completion"]
