"""The files API: what clients send to be worked on, and what was made of it.

The bytes go past this process, piece by piece, between the client and the store.
"""

from __future__ import annotations

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from api.access import header_of, query_of
from api.context import Context, context_of, json_response, tenant_of
from api.files.download import BYTES, JSONL, Download
from api.files.filed import file_of, remove
from api.files.multipart import Form, received
from api.openapi import answers
from api.openapi.description import Reach, described
from api.schemas.files import FileListFields, UploadFields, UploadForm, deleted_json, file_json, list_json, read_upload
from api.schemas.strict import bad_field, read
from shared.errors import InvalidRequest, Unavailable, UnknownFile
from shared.files import FileRecord, Piece, object_of

log = structlog.get_logger(__name__)


@described("Send a file", form=UploadForm, gives=answers.File, reach=Reach.FLEET)
async def create(request: Request) -> Response:
    """The file may come before or behind the other fields, and in chunks. It is there whole or not at all."""
    context, tenant = context_of(request), tenant_of(request)
    file_id = context.bus.files.new_id()
    limit = int(context.settings.max_file_mb * 1_000_000)
    name = object_of(file_id)
    async with received(request, context.store, context.reading, part="file", name=name, limit=limit) as form:
        fields = read_upload(form.fields)
    life_s = fields.seconds or context.settings.file_retention_s
    record = await context.bus.files.create(_record(file_id, tenant, form, fields), life_s)
    return json_response(file_json(record))


@described("List files", query=FileListFields, gives=answers.FileList, reach=Reach.FLEET)
async def index(request: Request) -> Response:
    """A page of this tenant's files by their age. What a running batch has made so far is in no list."""
    context, tenant = context_of(request), tenant_of(request)
    fields = read(FileListFields, query_of(request, FileListFields.model_fields))
    try:
        page = await context.bus.files.page(tenant, **fields.model_dump())
    except UnknownFile:
        raise bad_field("after", "there is no such file") from None
    return json_response(list_json(page))


@described("What a file is", gives=answers.File, reach=Reach.FLEET, fails=(404,))
async def show(request: Request) -> Response:
    context = context_of(request)
    return json_response(file_json(await file_of(context.bus, tenant_of(request), request.path_params["file_id"])))


@described("Delete a file", gives=answers.DeletedFile, reach=Reach.FLEET, fails=(400, 404))
async def delete(request: Request) -> Response:
    """It is gone at once, its bytes soon after. A batch that has begun to run does not need its input file any more."""
    context, tenant, file_id = context_of(request), tenant_of(request), request.path_params["file_id"]
    record = await context.bus.files.delete(file_id, tenant)
    if record is None:
        await file_of(context.bus, tenant, file_id)
        raise InvalidRequest("The file still grows: its batch runs", param="file_id")
    context.spawn(_remove(context, record))
    return json_response(deleted_json(file_id))


@described(
    "A file's content",
    gives_text=(JSONL, BYTES),
    also={206: None},
    headers={
        "Range": "One part of it, such as `bytes=0-99`.",
        "If-Range": "An ETag: the part is given only if the file still is that one.",
    },
    reach=Reach.FLEET,
    fails=(404, 416),
)
async def content(request: Request) -> ASGIApp:
    """Of a batch that still runs, what there is so far, with `X-Incomplete: true`."""
    context = context_of(request)
    record = await file_of(context.bus, tenant_of(request), request.path_params["file_id"])
    return Download(
        context.bus,
        context.store,
        record,
        asked_range=header_of(request, "Range"),
        if_range=header_of(request, "If-Range"),
    )


def _record(file_id: str, tenant: str, form: Form, fields: UploadFields) -> FileRecord:
    return FileRecord(
        id=file_id,
        tenant=tenant,
        filename=form.filename,
        purpose=fields.purpose,
        created_at=0.0,
        pieces=(Piece(name=object_of(file_id), n_bytes=form.n_bytes),),
    )


async def _remove(context: Context, record: FileRecord) -> None:
    try:
        await remove(context.bus, context.store, [record])
    except Unavailable as error:
        log.warning("a deleted file's bytes are left for later", file=record.id, reason=error.message)
