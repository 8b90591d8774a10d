"""A request that waits for its answer: client JSON in, jobs made, their response out. The same for every family."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from api.body import read_as
from api.context import context_of, tenant_of
from api.images import place_images
from api.pinning import pinned
from api.relay import JobResponse
from api.schemas.ask import Ask, Origin
from shared.jobs import Job, Lane


async def answer(request: Request, read: Callable[[dict[str, Any]], Ask]) -> ASGIApp:
    """Everything that can be refused without a worker is refused before anything is queued."""
    context = context_of(request)
    ask = await read_as(request, context.max_body, read)
    model = await context.fleet.resolve_staffed(ask.model)
    ask = await place_images(context, ask, model)
    tenant = tenant_of(request)
    pins = [pinned(context.fleet, model, wanted) for wanted in ask.split()]
    jobs = [
        Job(
            id=context.bus.queue.new_job_id(None, tenant),
            model=model,
            request=pin.request,
            lane=ask.lane or Lane.INTERACTIVE,
            tenant=tenant,
            deadline_s=context.settings.deadline_s,
            endpoint=request.url.path,
        )
        for pin in pins
    ]
    origin = Origin(jobs[0].id, model, int(time.time()))
    return JobResponse(context, jobs, ask.shape(origin), is_stream=ask.is_stream, workers=[pin.worker for pin in pins])
