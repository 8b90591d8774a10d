"""What ollama's clients are told of models: those there are, those that are loaded, and all about one of them.

Knows no workers, only cards and what a worker tells of its model on request.
"""

from __future__ import annotations

import hashlib
from typing import Any

from api.schemas.models import capabilities, details_json, modified_at
from shared.bus import ModelCard
from shared.events import Properties

NO_TIME = "0001-01-01T00:00:00Z"
"""Go's zero time, where nobody knows: clients read a time or fail."""
FOREVER = "9999-12-31T23:59:59Z"
"""When a model is unloaded: not as long as its worker runs."""


def tag_json(card: ModelCard) -> dict[str, Any]:
    """Of `/api/tags`."""
    return {**_head(card), "modified_at": modified_at(card) or NO_TIME}


def running_json(card: ModelCard) -> dict[str, Any]:
    """Of `/api/ps`. How much of it is in a graphics card's memory is not known here; strict clients want a number."""
    return {**_head(card), "expires_at": FOREVER, "size_vram": 0, "context_length": card.n_ctx}


def show_json(card: ModelCard, properties: Properties) -> dict[str, Any]:
    """Of `/api/show`, with what stands in the head of the model's file."""
    return {
        "modelfile": f"FROM {card.name}\n",
        "parameters": "",
        "template": properties.chat_template,
        "details": details_json(card),
        "model_info": {"general.parameter_count": card.n_params, **properties.metadata},
        "capabilities": capabilities(card),
        "modified_at": modified_at(card) or NO_TIME,
    }


def _head(card: ModelCard) -> dict[str, Any]:
    return {
        "name": card.name,
        "model": card.name,
        "size": card.size,
        "digest": _digest(card),
        "details": details_json(card),
    }


def _digest(card: ModelCard) -> str:
    """Another one for another file, as far as a card tells: nobody has read all of it. ollama's own command prints the
    first twelve digits without looking whether they are there."""
    facts = (card.name, card.size, card.n_params, card.quantization, card.modified_at)
    return hashlib.sha256(repr(facts).encode()).hexdigest()
