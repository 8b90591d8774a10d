"""The jobs API: work that does not care who listens, and a stream that anyone may join and leave.

Nothing here cancels a job but the request to cancel it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api import sse
from api.access import idempotency_key_of, query_of
from api.body import read_as
from api.context import Context, context_of, tenant_of, written_response
from api.cursor import after_of
from api.kept import enqueue, kept_body, made_before, record_of
from api.openapi import answers
from api.openapi.description import Pieces, Reach, described
from api.problems import body_of
from api.relay import Departure, Stream
from api.rendering import rendered
from api.schemas.ask import Ask, Heard
from api.schemas.dialect import ENDPOINTS
from api.schemas.jobs import (
    EventsFields,
    JobFields,
    ListFields,
    job_json,
    list_json,
    token_json,
)
from api.schemas.strict import bad_field, read
from api.webhooks.asked import check_address, events_of_job, webhook_of
from shared.bus import Reader, Receipt
from shared.errors import InvalidRequest, NotSupported, SlotstreamError, UnknownJob, UnknownModel
from shared.events import Finished, Tokens
from shared.jobs import Job, JobRecord, Lane


@described(
    "Leave work that nobody waits for",
    reads=JobFields,
    headers={"Idempotency-Key": "The same key with the same body is the same job."},
    gives=answers.Job,
    also={202: answers.Job},
    reach=Reach.FLEET,
    fails=(404, 409, 429, 501),
    tells_job=True,
)
async def create(request: Request) -> Response:
    """202 with the new job; 200 with the old one when its idempotency key is used again."""
    context, tenant = context_of(request), tenant_of(request)
    key = idempotency_key_of(request)
    fields = await read_as(request, context.max_body, lambda raw: read(JobFields, raw))
    ask, model = await _asked(context, fields)
    webhook = webhook_of(context, fields.webhook, events_of_job(fields.endpoint))
    job = _job(context, tenant, fields, ask, model, key=key).model_copy(update={"webhook": webhook})
    receipt = await made_before(context, job, ask, key)
    if receipt is None:
        await check_address(context, webhook)
        receipt = await _enqueued(context, job, ask, key)
    record = await record_of(context, tenant, receipt.job_id)
    return await _job_response(context, record, 202 if receipt.is_new else 200)


@described("Jobs, newest first", query=ListFields, gives=answers.JobList, reach=Reach.FLEET)
async def index(request: Request) -> Response:
    """A page of this tenant's jobs, newest first."""
    fields = read(ListFields, query_of(request))
    context, tenant = context_of(request), tenant_of(request)
    try:
        page = await context.bus.queue.page(tenant, status=fields.status, limit=fields.limit, after=fields.after)
    except UnknownJob:
        raise bad_field("after", "there is no such job") from None
    endings = [record.finished for record in page.records if record.finished]
    return written_response(await rendered(endings, lambda: list_json(page, context.fleet.waiting_for)))


@described("How a job stands, and its result", gives=answers.Job, reach=Reach.FLEET, fails=(404,), tells_job=True)
async def show(request: Request) -> Response:
    context = context_of(request)
    record = await record_of(context, tenant_of(request), request.path_params["job_id"])
    return await _job_response(context, record)


@described("Cancel a job", gives=answers.Job, reach=Reach.FLEET, fails=(404,), tells_job=True)
async def cancel(request: Request) -> Response:
    """The job as it is now: cancelled, about to be, or as it had ended already."""
    context, tenant = context_of(request), tenant_of(request)
    record = await record_of(context, tenant, request.path_params["job_id"], is_glance=True)
    return await _job_response(context, await context.bus.queue.cancel(record.id))


@described(
    "A job's tokens as they come, and its end",
    query=EventsFields,
    headers={"Last-Event-ID": "The event after which to go on; it counts before `starting_after`."},
    streams=(Pieces.sse(answers.JobEvent),),
    also={204: None},
    reach=Reach.FLEET,
    fails=(404,),
    tells_job=True,
)
async def events(request: Request) -> ASGIApp:
    context, tenant = context_of(request), tenant_of(request)
    after = after_of(request)
    record = await record_of(context, tenant, request.path_params["job_id"], is_glance=True)
    if request.method == "HEAD":
        return Response(headers=sse.HEADERS | {"X-Job-Id": record.id})
    return EventsResponse(context, record, after)


class EventsResponse:
    """A job's events from a number on, until it ends or the reader goes."""

    def __init__(self, context: Context, record: JobRecord, after: int) -> None:
        self._context = context
        self._record = record
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"X-Job-Id": self._record.id}
        keep_alive_s = self._context.settings.keep_alive_s
        follow = self._context.bus.log.follow(self._record.id, after=self._after)
        async with follow as reader, Departure(receive):
            events = JobEvents(self._context, self._record, reader)
            first = await events.next(0)
            if events.is_over and first is not None and (first.number or 0) <= self._after:
                # The end was seen already. 204 is what keeps a browser's EventSource from coming again.
                await Response(status_code=204, headers=headers)(scope, receive, send)
            else:
                await Stream(events, headers, keep_alive_s).run(events, send, [first] if first else [])


class JobEvents:
    """One durable job, both as what is followed and as how it looks: one event for each number of its log."""

    framing = sse.FRAMING

    def __init__(self, context: Context, record: JobRecord, reader: Reader) -> None:
        self._queue = context.bus.queue
        self._waiting_for = context.fleet.waiting_for
        self._record = record
        self._reader = reader
        self.is_over = False

    async def next(self, timeout_s: float) -> Heard | None:
        """Only what has a number."""
        until = time.monotonic() + timeout_s
        while (said := await self._reader.next(max(0.0, until - time.monotonic()))) is not None:
            if isinstance(said.event, Finished):
                self.is_over = True
                self._record = await self._queue.record(self._record.id) or self._record
            if said.number is not None:
                return Heard(0, said.number, said.event)
        return None

    def say(self, heard: Heard) -> bytes:
        match heard:
            case Heard(number=int(number), event=Tokens() as tokens):
                return sse.event(number, "token", token_json(tokens))
            case Heard(number=int(number), event=Finished(status=status)):
                name = "done" if status == "succeeded" else "error"
                return sse.event(number, name, job_json(self._record, self._waiting_for))
        return b""

    def end(self) -> bytes:
        return b""

    def failed(self, error: Exception) -> bytes:
        """A job that is gone says so. Else nothing that could be taken for its end: the reader comes again with the
        last id it has."""
        if isinstance(error, UnknownJob):
            return sse.notice("error", body_of(error, with_param=True))
        return b": interrupted\n\n"

    def body(self, endings: Sequence[Finished]) -> Any:
        raise AssertionError("events are only streamed")


async def _asked(context: Context, fields: JobFields) -> tuple[Ask, str]:
    """What is asked, as yet without its images, and of which model."""
    if fields.endpoint not in ENDPOINTS:
        raise bad_field("endpoint", f"must be one of {', '.join(ENDPOINTS)}")
    try:
        ask = context.dialect.readers[fields.endpoint](fields.body)
        model = await context.fleet.resolve(ask.model)
    except (InvalidRequest, NotSupported, UnknownModel) as error:
        raise _inside_body(error) from None
    if ask.is_stream:
        raise bad_field("body.stream", "a job is streamed by its events")
    if ask.webhook:
        raise bad_field("body.webhook", "that of a job stands beside 'body'")
    return ask, model


async def _enqueued(context: Context, job: Job, ask: Ask, key: str | None) -> Receipt:
    try:
        return await enqueue(context, job, ask, key=key)
    except (InvalidRequest, NotSupported) as error:
        raise _inside_body(error) from None


def _job(context: Context, tenant: str, fields: JobFields, ask: Ask, model: str, *, key: str | None) -> Job:
    return Job(
        id=context.bus.queue.new_job_id(key, tenant),
        model=model,
        request=ask.request,
        lane=fields.priority or ask.lane or Lane.BULK,
        tenant=tenant,
        deadline_s=fields.deadline_s or context.settings.job_deadline_s,
        endpoint=fields.endpoint,
        compat=context.dialect.name,
        is_durable=True,
        body=kept_body(fields.body, ask),
        metadata=fields.metadata,
    )


def _inside_body(error: SlotstreamError) -> SlotstreamError:
    """What the endpoint says of its field, as said of a field of the job."""
    if error.param is None:
        return error
    message = error.message.replace(f"Field '{error.param}'", f"Field 'body.{error.param}'", 1)
    return type(error)(message, param=f"body.{error.param}")


async def _job_response(context: Context, record: JobRecord, status: int = 200) -> Response:
    endings = [record.finished] if record.finished else []
    text = await rendered(endings, lambda: job_json(record, context.fleet.waiting_for))
    return written_response(text, status, {"X-Job-Id": record.id})
