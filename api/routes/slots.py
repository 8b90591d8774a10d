"""llama.cpp's path for what slots have in the cache: kept in a file of its worker, brought back, or forgotten.

Files lie with the worker that wrote them: where workers share no folder, one restores its own alone.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.types import ASGIApp

from api.access import query_of
from api.body import read_body_if_any
from api.context import context_of, tenant_of
from api.openapi import answers
from api.openapi.description import Reach, described
from api.relay import JobResponse
from api.schemas.slots import SlotFields, report_json, slot_action, slot_number
from api.schemas.strict import OwnFields, read
from api.schemas.whole import WholeShape
from shared.errors import InvalidRequest, NotReady, NotSupported
from shared.jobs import Job


class SlotQuery(OwnFields):
    action: Annotated[str, Field(json_schema_extra={"enum": ["save", "restore", "erase"]})] = ""
    model: str | None = None


@described(
    "Save, restore or erase what a slot has in the cache",
    query=SlotQuery,
    reads=SlotFields,
    needs_body=False,
    gives=answers.SlotReport,
    reach=Reach.JOB,
)
async def act(request: Request) -> ASGIApp:
    """Waits while the slot is busy, up to the deadline of requests, and no longer than the client does."""
    context, tenant = context_of(request), tenant_of(request)
    fleet = context.fleet
    query = read(SlotQuery, query_of(request))
    fields = read(SlotFields, await read_body_if_any(request, context.max_body))
    model = await fleet.resolve_staffed(query.model or fields.model)
    if not (workers := fleet.loaded(model)):
        raise NotReady("Loading model")
    if not any(worker.model.has_slot_files for worker in workers):
        raise NotSupported("This server does not support slots action. Start it with `--slot-save-path`")
    number = slot_number(request.path_params["id_slot"])
    slot = fleet.slot(model, number)
    if slot is not None and slot.number != number:  # what a request names is counted round; here it would do harm
        raise InvalidRequest("Invalid slot ID")
    wanted = slot_action(query.action, slot.id if slot else 0, fields)
    if slot is None:
        raise NotReady(f"No worker of {model!r} is ready now", retry_after_s=5)
    job = Job(
        id=context.bus.queue.new_job_id(None, tenant),
        model=model,
        request=wanted,
        tenant=tenant,
        deadline_s=context.settings.deadline_s,
        endpoint=request.url.path,
    )
    report = WholeShape(partial(report_json, wanted, slot.number))
    return JobResponse(context, [job], lambda _: report, workers=[slot.worker_id])
