"""llama.cpp's path for LoRA adapters: which there are, and how much of each a request gets that names none."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api.access import query_of
from api.context import context_of, json_response
from api.schemas.strict import OwnFields, read
from shared.bus import ModelCard
from shared.errors import NotReady


class AdapterQuery(OwnFields):
    model: str | None = None
    """llama.cpp's body is a list, so that it has no room for it."""


async def index(request: Request) -> Response:
    """Of the worker whose scales were set last: the others of its model have the same, or will in a moment."""
    fleet = context_of(request).fleet
    asked = read(AdapterQuery, query_of(request)).model
    await fleet.look()
    cards = [worker.model for worker in fleet.loaded(await fleet.resolve_staffed(asked))]
    if not cards:
        raise NotReady("Loading model")
    return json_response(_adapters_json(max(cards, key=lambda card: card.adapters_set_at)))


def _adapters_json(card: ModelCard) -> list[dict[str, Any]]:
    return [
        {
            "id": place,
            "path": adapter.path,
            "scale": adapter.scale,
            "task_name": adapter.task_name,
            "prompt_prefix": adapter.prompt_prefix,
        }
        for place, adapter in enumerate(card.adapters)
    ]
