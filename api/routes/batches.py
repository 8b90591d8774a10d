"""The batches API: a file of requests in, files of results out, and a stream of what has been done so far.

Nothing here runs a line: a batch is a record that the tasks processes find.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple, Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from api import sse
from api.access import REPEATS, idempotency_key_of, is_sent_again, query_of
from api.batches.pace import average
from api.batches.tail import GONE, EventsResponse
from api.body import read_as, read_body_if_any
from api.context import Context, context_of, json_response, tenant_of, written_response
from api.cursor import after_of
from api.openapi import answers
from api.openapi.description import Pieces, Reach, described
from api.schemas.batches import BatchFields, BatchListFields, RetryFields, batch_json, fingerprint, list_json
from api.schemas.jobs import EventsFields
from api.schemas.strict import bad_field, read, to_json
from api.schemas.window import window_s
from api.webhooks.asked import check_address, webhook_of
from shared.batches import Batch, BatchStatus
from shared.errors import InvalidRequest, UnknownBatch
from shared.files import Purpose
from shared.webhooks import BATCH_EVENTS

SAID_AGAIN = {
    "Idempotency-Key": "The same key with the same body is the same batch.",
    REPEATS: "From 1 on, and without a key: the batch that the same body made in the last ten minutes, if it made one.",
}


@described(
    "Run a file of requests",
    reads=BatchFields,
    headers=SAID_AGAIN,
    gives=answers.Batch,
    reach=Reach.FLEET,
    fails=(409,),
)
async def create(request: Request) -> Response:
    """The new batch, or the old one when it is asked for again. What is wrong with the file shows in the batch."""
    context, tenant = context_of(request), tenant_of(request)
    fields = await read_as(request, context.max_body, lambda raw: read(BatchFields, raw))
    asking = Asking.of(request, fingerprint(fields))
    if earlier := await context.bus.batches.made_before(tenant, **asking._asdict()):
        return _answer(await _batch(context, tenant, earlier))
    await _check_input(context, tenant, fields.input_file_id)
    webhook = webhook_of(context, fields.webhook, BATCH_EVENTS)
    await check_address(context, webhook)
    batch = Batch(
        id=context.bus.batches.new_id(asking.idempotency_key, tenant),
        tenant=tenant,
        endpoint=fields.endpoint,
        compat=context.dialect.name,
        input_file_id=fields.input_file_id,
        completion_window=fields.completion_window,
        window_s=window_s(fields.completion_window),
        output_life_s=fields.output_life_s,
        metadata=fields.metadata,
        webhook=webhook,
    )
    return await _made(context, batch, asking)


@described("Batches, newest first", query=BatchListFields, gives=answers.BatchList, reach=Reach.FLEET)
async def index(request: Request) -> Response:
    """A page of this tenant's batches, newest first."""
    fields = read(BatchListFields, query_of(request, tuple(BatchListFields.model_fields)))
    try:
        page = await context_of(request).bus.batches.page(tenant_of(request), limit=fields.limit, after=fields.after)
    except UnknownBatch:
        raise bad_field("after", "there is no such batch") from None
    now = time.time()
    # In a thread: a page may tell of a hundred thousand bad lines.
    text = await asyncio.to_thread(lambda: to_json(list_json(page, lambda batch: average(batch, now))))
    return written_response(text)


@described("How a batch stands", gives=answers.Batch, reach=Reach.FLEET, fails=(404,))
async def show(request: Request) -> Response:
    return _answer(await _asked(request))


@described("Cancel a batch", gives=answers.Batch, reach=Reach.FLEET, fails=(400, 404))
async def cancel(request: Request) -> Response:
    """The batch as it is now. Lines that are done stay done; those at work are stopped."""
    batch = await context_of(request).bus.batches.cancel((await _asked(request)).id)
    # Who asks again may have lost the first answer.
    if batch.status.is_ended and batch.status is not BatchStatus.CANCELLED:
        raise InvalidRequest(f"The batch has ended as {batch.status.value}, and cannot be cancelled any more")
    return _answer(batch)


@described(
    "Run the lines of a batch again that failed",
    reads=RetryFields,
    needs_body=False,
    headers=SAID_AGAIN,
    gives=answers.Batch,
    reach=Reach.FLEET,
    fails=(404, 409),
)
async def retry(request: Request) -> Response:
    """A new batch of the lines of an ended one that failed, expired or were cancelled. Lines that were no requests stay
    out."""
    context, tenant = context_of(request), tenant_of(request)
    fields = read(RetryFields, await read_body_if_any(request, context.max_body))
    old = await _asked(request)
    asking = Asking.of(request, fingerprint(fields, old.id))
    if earlier := await context.bus.batches.made_before(tenant, **asking._asdict()):
        return _answer(await _batch(context, tenant, earlier))
    if not old.status.is_ended:
        raise InvalidRequest(f"The batch is {old.status.value}: its lines can be run again when it has ended")
    if old.status is BatchStatus.CANCELLED and not old.n_total:
        raise InvalidRequest("The batch was cancelled before its file was looked through: make another of that file")
    if old.n_failed - old.n_bad <= 0:
        raise InvalidRequest("No line of the batch can be run again: none that is a request has failed")
    window = fields.completion_window or old.completion_window
    webhook = webhook_of(context, fields.webhook, BATCH_EVENTS)
    await check_address(context, webhook)
    batch = Batch(
        id=context.bus.batches.new_id(asking.idempotency_key, tenant),
        tenant=tenant,
        endpoint=old.endpoint,
        compat=old.compat,
        input_file_id=old.input_file_id,
        completion_window=window,
        window_s=window_s(window),
        output_life_s=old.output_life_s,
        metadata=old.metadata if fields.metadata is None else fields.metadata,
        webhook=webhook or old.webhook,
        retry_of=old.id,
    )
    return await _made(context, batch, asking)


@described(
    "The lines of a batch as they are done, and its end",
    query=EventsFields,
    headers={"Last-Event-ID": "The event after which to go on; it counts before `starting_after`."},
    streams=(Pieces.sse(answers.BatchEvent),),
    also={204: None},
    reach=Reach.FLEET,
    fails=(404,),
)
async def events(request: Request) -> ASGIApp:
    """`line` has the record of a line, as it stands in one of the two files, `progress` tells how the batch gets on,
    about each second in which that has changed, and `done` has the batch at its end."""
    after = after_of(request)
    batch = await _asked(request)
    if request.method == "HEAD":
        return Response(headers=sse.HEADERS)
    if batch.status.is_ended and after > batch.n_records:
        # The end was seen already. 204 is what keeps a browser's EventSource from coming again.
        return Response(status_code=204)
    return EventsResponse(context_of(request), batch, after)


class Asking(NamedTuple):
    """By what a batch is known again that has been asked for before."""

    idempotency_key: str | None
    fingerprint: str
    repeats: bool

    @classmethod
    def of(cls, request: Request, fingerprint: str) -> Self:
        """A key says all: who has one may ask for the same twice. Raises InvalidRequest."""
        key, repeats = idempotency_key_of(request), is_sent_again(request)
        return cls(key, fingerprint, key is None and repeats)


async def _asked(request: Request) -> Batch:
    return await _batch(context_of(request), tenant_of(request), request.path_params["batch_id"])


async def _batch(context: Context, tenant: str, batch_id: str) -> Batch:
    """Raises UnknownBatch for another tenant's batch exactly as for none."""
    batch = await context.bus.batches.record(batch_id, tenant)
    if batch is None:
        raise UnknownBatch(GONE)
    return batch


async def _check_input(context: Context, tenant: str, file_id: str) -> None:
    """Raises InvalidRequest for a file that can be no batch's."""
    record = await context.bus.files.record(file_id, tenant)
    if record is None:
        raise bad_field("input_file_id", "there is no such file")
    if record.purpose is not Purpose.BATCH:
        raise bad_field("input_file_id", f"the file was uploaded with purpose '{record.purpose.value}', not 'batch'")


async def _made(context: Context, batch: Batch, asking: Asking) -> Response:
    receipt = await context.bus.batches.create(batch, **asking._asdict())
    return _answer(await _batch(context, batch.tenant, receipt.batch_id))


def _answer(batch: Batch) -> Response:
    return json_response(batch_json(batch, average(batch, time.time())))
