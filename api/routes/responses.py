"""OpenAI's responses: an answer that is kept, and can be asked for, followed and picked up again by its id.

One that runs in the background does not care who listens; any other ends with the client that waits for it.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api import sse
from api.access import idempotency_key_of, query_of
from api.body import read_as
from api.context import Context, context_of, json_response, path_of, tenant_of
from api.kept import KeptJob, enqueue, kept_body, made_before, record_of
from api.openapi import responses as told
from api.openapi.description import Pieces, Reach, described
from api.relay import Departure, Stream
from api.schemas import responses
from api.schemas.ask import Ask, Origin
from api.schemas.jobs import WholeNumber
from api.schemas.responses.body import ResponseBody, job_id_of, response_id_of
from api.schemas.responses.fields import Asked, ResponseFields, asked_of
from api.schemas.responses.shape import ResponseShape
from api.schemas.strict import ClientFields, bad_field, read
from api.synchronous import answer_to
from api.webhooks.asked import check_address, webhook_of
from shared.errors import InvalidRequest, UnknownJob
from shared.jobs import Job, JobRecord, JobStatus, Lane
from shared.webhooks import RESPONSE_EVENTS

ENDPOINTS = ("/v1/responses", "/responses")

CANCEL_WAIT_S = 5.0
"""For the worker of a response that was cancelled: it stops within a decode, and then the answer can say so."""


class RetrieveFields(ClientFields):
    stream: Literal["true", "false"] = "false"
    starting_after: WholeNumber = -1


@described(
    "An answer to items, which can be asked for again",
    reads=ResponseFields,
    headers={"Idempotency-Key": "With `background`: the same key with the same body is the same response."},
    gives=told.Response,
    streams=(Pieces.sse(told.ResponseEvent),),
    reach=Reach.JOB,
    fails=(409,),
)
async def create(request: Request) -> ASGIApp:
    context = context_of(request)
    ask = await read_as(request, context.max_body, responses.response)
    if not ask.is_background:
        if ask.webhook is not None:
            raise bad_field("webhook", "needs 'background': whoever waits for the answer need not be told of it")
        return await answer_to(request, ask)
    record = await _begun(request, ask)
    return _response_or_events(context, record, is_stream=ask.is_stream)


@described(
    "How a response stands, or its events from any of them on",
    query=RetrieveFields,
    gives=told.Response,
    streams=(Pieces.sse(told.ResponseEvent),),
    reach=Reach.FLEET,
    fails=(404,),
    tells_job=True,
)
async def show(request: Request) -> ASGIApp:
    fields = read(RetrieveFields, query_of(request, tuple(RetrieveFields.model_fields)))
    record = await _record(request)
    is_stream = fields.stream == "true"
    if is_stream and request.method == "HEAD":
        return Response(headers=sse.HEADERS | {"X-Job-Id": record.id})
    return _response_or_events(context_of(request), record, is_stream=is_stream, after=fields.starting_after)


@described(
    "Cancel a response in the background", gives=told.Response, reach=Reach.FLEET, fails=(400, 404), tells_job=True
)
async def cancel(request: Request) -> Response:
    """The response as it is then: cancelled, or as it had ended already."""
    context = context_of(request)
    record = await _record(request)
    if not _asked(record).typed.background:
        raise InvalidRequest("Only a response that was made with 'background' can be cancelled")
    record = await context.bus.queue.cancel(record.id)
    if not record.status.is_ended:
        await _ended(context, record.id)
        record = await _record(request)
    return _response(record)


@described("Forget a response", gives=told.DeletedResponse, reach=Reach.FLEET, fails=(400, 404))
async def delete(request: Request) -> Response:
    """Forgets a response that has ended."""
    record = await _record(request)
    if not await context_of(request).bus.queue.forget(record.id, record.tenant):
        raise InvalidRequest("The response is still in progress: it can be deleted when it has ended")
    return json_response({"id": response_id_of(record.id), "object": "response", "deleted": True})


class ResponseEvents:
    """A response's events behind a number, until it ends or the reader goes."""

    def __init__(self, context: Context, record: JobRecord, after: int) -> None:
        self._context = context
        self._record = record
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shape = ResponseShape(_origin(self._record), _asked(self._record), after=self._after)
        stream = Stream(shape, {"X-Job-Id": self._record.id}, self._context.settings.keep_alive_s)
        # From its beginning: what an event is, and its number, follows from all that came before.
        async with self._context.bus.log.follow(self._record.id) as reader, Departure(receive):
            await stream.run(KeptJob(reader), send, opening=shape.opening())


async def _begun(request: Request, ask: Ask) -> JobRecord:
    """The job of a background response; with an idempotency key, perhaps one that was made before."""
    context, tenant = context_of(request), tenant_of(request)
    key = idempotency_key_of(request)
    model = await context.fleet.resolve(ask.model)
    job = Job(
        id=context.bus.queue.new_job_id(key, tenant),
        model=model,
        request=ask.request,
        lane=ask.lane or Lane.INTERACTIVE,
        tenant=tenant,
        deadline_s=context.settings.job_deadline_s,
        endpoint=path_of(request),
        compat=context.dialect.name,
        is_durable=True,
        body=kept_body(ask.kept_fields or {}, ask),
        webhook=webhook_of(context, ask.webhook, RESPONSE_EVENTS),
        metadata=dict(ask.metadata),
    )
    receipt = await made_before(context, job, ask, key)
    if receipt is None:
        await check_address(context, job.webhook)
        receipt = await enqueue(context, job, ask, key=key)
    record = await record_of(context, tenant, receipt.job_id)
    # A quick worker may have it already, or be done: what was made is told as it was made.
    return record.model_copy(update={"status": JobStatus.QUEUED, "finished": None}) if receipt.is_new else record


async def _record(request: Request) -> JobRecord:
    """Raises UnknownJob for what is no response, or another tenant's."""
    response_id = request.path_params["response_id"]
    try:
        record = await record_of(context_of(request), tenant_of(request), job_id_of(response_id))
    except UnknownJob:
        record = None
    if record is None or record.endpoint not in ENDPOINTS or record.body is None:
        raise UnknownJob("There is no such response") from None
    return record


def _response_or_events(context: Context, record: JobRecord, *, is_stream: bool, after: int = -1) -> ASGIApp:
    return ResponseEvents(context, record, after) if is_stream else _response(record)


async def _ended(context: Context, job_id: str) -> None:
    """Waits a while for the job's end."""
    with suppress(TimeoutError, UnknownJob):
        async with asyncio.timeout(CANCEL_WAIT_S), context.bus.log.follow(job_id) as reader:
            async for _ in reader:
                pass


def _response(record: JobRecord) -> Response:
    body = ResponseBody(_origin(record), _asked(record))
    value = body.ended(record.finished) if record.finished else body.as_of(record.status)
    return json_response(value, headers={"X-Job-Id": record.id})


def _origin(record: JobRecord) -> Origin:
    return Origin(record.id, record.model, int(record.created_at))


def _asked(record: JobRecord) -> Asked:
    assert record.body is not None
    return asked_of(json.loads(record.body))
