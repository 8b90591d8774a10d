"""llama.cpp's path for LoRA adapters: which there are, and how much of each a request gets that names none.

Scales are those of a model, on all its workers: what sets them asks each one, and one that starts adopts them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from api.access import query_of
from api.body import read_list
from api.context import context_of, json_response, tenant_of
from api.openapi import answers
from api.openapi.description import Reach, described
from api.relay import JobResponse
from api.schemas.adapters import AdapterListFields, adapters_of
from api.schemas.strict import OwnFields, bad_field, read
from api.schemas.whole import WholeShape
from shared.bus import ModelCard, WorkerState
from shared.errors import NotReady
from shared.jobs import Adapter, Job, SetAdapters, no_adapter


class AdapterQuery(OwnFields):
    model: str | None = None
    """llama.cpp's body is a list, so that it has no room for it."""


@described(
    "LoRA adapters, and their scales for requests that name none",
    query=AdapterQuery,
    gives=list[answers.AdapterState],
    reach=Reach.FLEET,
    fails=(404,),
)
async def index(request: Request) -> Response:
    """Of the worker whose scales were set last: the others of its model have the same, or will in a moment."""
    fleet = context_of(request).fleet
    asked = read(AdapterQuery, query_of(request)).model
    await fleet.look()
    cards = [worker.model for worker in fleet.loaded(await fleet.resolve_staffed(asked))]
    if not cards:
        raise NotReady("Loading model")
    return json_response(_adapters_json(max(cards, key=lambda card: card.adapters_set_at)))


@described(
    "Set these scales on every worker of the model",
    query=AdapterQuery,
    reads=AdapterListFields,
    gives=answers.Success,
    reach=Reach.JOB,
    tells_job=False,
)
async def change(request: Request) -> ASGIApp:
    """Succeeds when every worker of the model has the new scales. One that goes meanwhile is a 503: asked again, those
    that are left will do."""
    context, tenant = context_of(request), tenant_of(request)
    fleet = context.fleet
    listed = await read_list(request, context.max_body)
    adapters = adapters_of(read(AdapterListFields, listed).root)
    asked = read(AdapterQuery, query_of(request)).model
    await fleet.look()  # one that came a moment ago must not be left out
    model = await fleet.resolve_staffed(asked)
    workers = fleet.staff(model)
    _check_ids(adapters, workers)
    # Later than what was set by a clock that is ahead of ours.
    before = max((worker.model.adapters_set_at for worker in workers), default=0.0)
    set_at = max(time.time(), math.nextafter(before, math.inf))
    jobs = [
        Job(
            id=context.bus.queue.new_job_id(None, tenant),
            model=model,
            request=SetAdapters(adapters=adapters, set_at=set_at),
            tenant=tenant,
            deadline_s=context.settings.deadline_s,
            endpoint=request.url.path,
        )
        for _ in workers
    ]
    done = WholeShape(lambda _: {"success": True})
    return JobResponse(context, jobs, lambda _: done, workers=[worker.id for worker in workers])


def _check_ids(adapters: Sequence[Adapter], workers: Sequence[WorkerState]) -> None:
    """All or none: nobody may have new scales when another refuses them. What one that still loads will have, only it
    knows."""
    counts = [len(worker.model.adapters) for worker in workers if worker.status != "loading"]
    for place, adapter in enumerate(adapters):
        if counts and adapter.id >= min(counts):
            raise bad_field(f"[{place}].id", no_adapter(adapter.id, min(counts)))


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
