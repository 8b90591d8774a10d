"""OpenAI's JSON of files: the fields of an upload, how a file looks, and pages of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from api.schemas.jobs import WholeNumber
from api.schemas.strict import ClientFields, bad_field, read
from shared.bus import FilePage
from shared.files import FileRecord, Purpose

MAX_PAGE = 10_000
LEAST_LIFE_S, MOST_LIFE_S = 3600, 30 * 86400

ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"

_GIVEN = tuple(purpose for purpose in Purpose if purpose is not Purpose.BATCH_OUTPUT)


def _given(text: str) -> Purpose:
    if text not in _GIVEN:
        raise ValueError(f"must be one of {', '.join(_GIVEN)}")
    return Purpose(text)


GivenPurpose = Annotated[Purpose, PlainValidator(_given), WithJsonSchema({"type": "string", "enum": list(_GIVEN)})]
"""One that a client can give a file."""


class UploadFields(ClientFields):
    """The fields of `POST /v1/files` besides the file; forms have texts only."""

    purpose: GivenPurpose
    anchor: Literal["created_at"] | None = Field(None, alias=ANCHOR)
    seconds: WholeNumber | None = Field(None, alias=SECONDS, ge=LEAST_LIFE_S, le=MOST_LIFE_S)


class UploadForm(UploadFields):
    """The form of `POST /v1/files`."""

    file: bytes = Field(json_schema_extra={"format": "binary"})


class FileListFields(ClientFields):
    """The query of `GET /v1/files`."""

    purpose: Purpose | None = Field(None, strict=False)
    order: Literal["asc", "desc"] = Field("desc", description="By age; `desc` begins with the youngest.")
    limit: WholeNumber = Field(MAX_PAGE, ge=1, le=MAX_PAGE)
    after: str | None = None


def read_upload(fields: Mapping[str, str]) -> UploadFields:
    """Raises InvalidRequest that names the field."""
    found = read(UploadFields, dict(fields))
    if (found.anchor is None) != (found.seconds is None):
        raise bad_field(ANCHOR if found.anchor is None else SECONDS, "is needed with the other")
    return found


def file_json(record: FileRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.n_bytes,
        "created_at": int(record.created_at),
        "expires_at": None if record.expires_at is None else int(record.expires_at),
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "uploaded" if record.is_growing else "processed",
    }


def list_json(page: FilePage) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [file_json(record) for record in page.records],
        "first_id": page.records[0].id if page.records else None,
        "last_id": page.records[-1].id if page.records else None,
        "has_more": page.has_more,
    }


def deleted_json(file_id: str) -> dict[str, Any]:
    return {"id": file_id, "object": "file", "deleted": True}
