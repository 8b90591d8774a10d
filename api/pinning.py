"""For whom a request is: whoever takes it, or the worker that has the slot which it names."""

from __future__ import annotations

from typing import NamedTuple

from api.fleet import Fleet
from shared.jobs import Generation, Request


class Pinned(NamedTuple):
    request: Request
    """Its slot counted as the worker counts."""
    worker: str | None
    """None: it may run anywhere."""


def pinned(fleet: Fleet, model: str, request: Request) -> Pinned:
    """Clients count slots over all workers, as `/slots` shows them."""
    if not isinstance(request, Generation) or request.id_slot < 0:
        return Pinned(request, None)
    slot = fleet.slot(model, request.id_slot)
    if slot is None:
        return Pinned(request, None)  # whoever comes first has one of that number, counted round and round
    return Pinned(request.model_copy(update={"id_slot": slot.id}), slot.worker_id)
