"""What was done and what waits, for Prometheus: counted by workers, kept by the bus, so that any API tells the same.

Nothing is reset by being read: any number of scrapers may come, and a worker that starts anew takes no count back.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from api.context import Context, context_of
from api.fleet import AWAY, Fleet
from api.openapi.description import Reach, described
from api.schemas.metrics import CONTENT_TYPE, Crew, metrics_text
from shared.errors import BusUnavailable, NotSupported
from shared.work import Work


@described("What was done and what waits", gives_text=("text/plain",), reach=Reach.FLEET, fails=(501,))
async def show(request: Request) -> Response:
    context = context_of(request)
    if not context.settings.metrics:
        raise NotSupported("This server does not support metrics endpoint. It was started with `--no-metrics`")
    await context.fleet.look()
    if context.fleet.is_bus_away:
        raise BusUnavailable(AWAY)
    headers = {"Process-Start-Time-Unix": str(int(context.started_at))}
    return Response(metrics_text(await _crews(context)), 200, headers, media_type=CONTENT_TYPE)


async def _crews(context: Context) -> list[Crew]:
    """Of every model that was served within a day: its counts must not go away with its workers."""
    bus, fleet = context.bus, context.fleet
    models = sorted({*fleet.models, *(worker.model.name for worker in fleet.workers)})
    totals, queued = await asyncio.gather(bus.tally.totals(models), bus.queue.lines(models))
    return [_crew(fleet, model, done, lines) for model, done, lines in zip(models, totals, queued, strict=True)]


def _crew(fleet: Fleet, model: str, done: Work, queued: dict[str, int]) -> Crew:
    workers = fleet.loaded(model)
    slots = [slot for worker in workers for slot in worker.slots]
    n_busy = sum(slot.is_processing for slot in slots)
    return Crew(
        model,
        n_workers=len(workers),
        n_busy_slots=n_busy,
        n_idle_slots=len(slots) - n_busy,
        n_parked=sum(worker.n_parked for worker in workers),
        n_held=sum(worker.n_waiting for worker in workers),
        n_cells=sum(worker.n_cells for worker in workers),
        n_cells_used=sum(worker.n_cells_used for worker in workers),
        recent=[worker.recent for worker in workers],
        queued=queued,
        done=done,
    )
