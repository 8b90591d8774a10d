"""A request that waits for its answer: client JSON in, jobs made, their response out. The same for every family."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from api.body import read_as
from api.context import context_of, path_of, tenant_of
from api.kept import kept_body
from api.pinning import pinned
from api.relay import JobResponse
from api.schemas.ask import Ask
from api.schemas.dialect import Reader
from shared.jobs import Job, Lane


async def spoken(request: Request) -> ASGIApp:
    """Any path of the table of what the server's clients speak."""
    return await answer(request, context_of(request).dialect.readers[path_of(request)])


async def answer(request: Request, read: Reader) -> ASGIApp:
    """Everything that can be refused without a worker is refused before anything is queued."""
    return await answer_to(request, await read_as(request, context_of(request).max_body, read))


async def answer_to(request: Request, ask: Ask) -> ASGIApp:
    """The same where the body was read, and something else could have been asked."""
    context = context_of(request)
    model = await context.fleet.resolve_staffed(ask.model)
    ask = await context.images.place(ask, model)
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
            endpoint=path_of(request),
            compat=context.dialect.name,
            is_durable=ask.kept_fields is not None,
            body=kept_body(ask.kept_fields, ask) if ask.kept_fields is not None else None,
            metadata=dict(ask.metadata),
        )
        for pin in pins
    ]
    return JobResponse(
        context,
        jobs,
        ask.shape,
        is_stream=ask.is_stream,
        keep_alive_s=ask.keep_alive_s,
        workers=[pin.worker for pin in pins],
    )
