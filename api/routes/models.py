"""Which models are served, as OpenAI lists them and, beside that, as llama.cpp does. Never waits for a worker."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from api.context import context_of, json_response
from api.fleet import AWAY, Fleet
from api.openapi import answers
from api.openapi.description import Reach, described
from api.schemas.models import listed_json, model_json
from shared.bus import ModelCard
from shared.errors import BusUnavailable, UnknownModel


@described("The models that are served", gives=answers.ModelList, reach=Reach.FLEET)
async def index(request: Request) -> Response:
    """While no worker is there, those that jobs may be left for."""
    fleet = context_of(request).fleet
    cards = await _serving(fleet)
    told = [model_json(card, _started_at(fleet, card)) for card in cards]
    return json_response({"object": "list", "data": told, "models": [listed_json(card) for card in cards]})


@described("One of them, by any of its names", gives=answers.Model, reach=Reach.FLEET, fails=(404,))
async def show(request: Request) -> Response:
    """Another name is not found, also where a request may say any: this asks what there is."""
    fleet = context_of(request).fleet
    name = request.path_params["model"]
    cards = await _serving(fleet)
    card = fleet.served(name)
    if card is None:
        there = f"; there are {', '.join(card.name for card in cards)}" if cards else ""
        raise UnknownModel(f"Model {name!r} is not served{there}", param="model", model=name)
    return json_response(model_json(card, _started_at(fleet, card)))


async def _serving(fleet: Fleet) -> list[ModelCard]:
    """By name. Raises BusUnavailable when nobody knows."""
    if not fleet.serving():
        await fleet.look()
    if not fleet.serving() and fleet.is_bus_away:
        raise BusUnavailable(AWAY)
    return sorted(fleet.serving().values(), key=lambda card: card.name)


def _started_at(fleet: Fleet, card: ModelCard) -> int:
    """When the first of its workers that are there started, in Unix seconds; 0 without one."""
    return min((int(worker.started_at) for worker in fleet.workers if worker.model.name == card.name), default=0)
