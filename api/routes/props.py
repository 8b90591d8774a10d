"""llama.cpp's path for what a server serves and how."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from api.access import query_of
from api.context import context_of, json_response
from api.openapi import answers
from api.openapi.description import Reach, described
from api.schemas.properties import properties_json
from api.schemas.strict import OwnFields, read
from shared.errors import NotReady, NotSupported


class PropertyQuery(OwnFields):
    model: str | None = None
    autoload: str | None = None
    """llama-server's, which loads a model for it when it serves several: here that is for workers to do."""


@described(
    "What is served and how",
    query=PropertyQuery,
    gives=answers.ServerProperties,
    reach=Reach.FLEET,
    fails=(404, 429),
)
async def show(request: Request) -> Response:
    """Of one model, where several are served: any worker of it answers, the first time."""
    context = context_of(request)
    fleet = context.fleet
    model = await fleet.resolve_staffed(read(PropertyQuery, query_of(request)).model)
    if not fleet.loaded(model):
        await fleet.look()
    told = await context.profiles.of(model)
    workers = fleet.loaded(model)
    if not workers:
        raise NotReady(fleet.loading)  # the one that answered has left since
    n_slots = sum(worker.n_slots for worker in workers)
    defaults = context.dialect.defaults
    return json_response(properties_json(workers[0].model, told, n_slots, context.settings, defaults))


@described("Refused: settings of workers are flags", fails=(501,))
async def change(request: Request) -> Response:
    """What llama-server lets be changed when it is told to, is one process's own. Here it would be of whichever worker
    was asked, until that ends: settings of workers are flags."""
    raise NotSupported("This server does not support changing global properties")
