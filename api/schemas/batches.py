"""The batches API's JSON: what makes a batch, how a batch looks, and what the events of one look like.

A batch looks as OpenAI's, all of its fields there and null where there is nothing to say, with some of our own behind
them. Times are whole Unix seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from api.batches.pace import Rate, eta_s
from api.schemas.dialect import ENDPOINTS
from api.schemas.jobs import MAX_PAGE, WholeNumber
from api.schemas.metadata import Metadata
from api.schemas.strict import ClientFields, OwnFields
from api.schemas.webhook import WebhookFields
from api.schemas.window import Window
from shared.batches import ANY_ENDPOINT, Batch, BatchStatus, LineFault, Usage, error_file_id, output_file_id
from shared.bus.batches import BatchPage
from shared.ids import digest_of

MADE_OF = (*ENDPOINTS, ANY_ENDPOINT)
"""What a batch's lines may ask."""


def _known(endpoint: str) -> str:
    if endpoint not in MADE_OF:
        raise ValueError(f"must be one of {', '.join(MADE_OF)}")
    return endpoint


class OutputExpiry(ClientFields):
    anchor: Literal["created_at"]
    """When the files were made, which is at the batch's end."""
    seconds: int = Field(ge=3600, le=30 * 86400)


class BatchFields(ClientFields):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    """A file that was uploaded with purpose `batch`."""
    endpoint: Annotated[str, AfterValidator(_known), Field(json_schema_extra={"enum": list(MADE_OF)})]
    """The path that all lines ask; `*` when each names its own."""
    completion_window: Window
    """After which lines that are not done are given up: 90s, 30m, 24h, 7d, 1h30m; at most 30 days."""
    metadata: Metadata = {}
    output_expires_after: OutputExpiry | None = None
    webhook: WebhookFields | None = None
    """Who is told of its end, besides the endpoints of its key."""

    @property
    def output_life_s(self) -> float | None:
        return float(self.output_expires_after.seconds) if self.output_expires_after else None


class RetryFields(OwnFields):
    """The body of `POST /v1/batches/{id}/retry`. What is not said is as it was."""

    completion_window: Window | None = None
    metadata: Metadata | None = None
    webhook: WebhookFields | None = None


class BatchListFields(ClientFields):
    """The query of `GET /v1/batches`."""

    limit: WholeNumber = Field(20, ge=1, le=MAX_PAGE)
    after: str | None = None


def fingerprint(fields: BatchFields | RetryFields, *more: str) -> str:
    """The same for two requests that ask for the same."""
    secret = fields.webhook.secret if fields.webhook else None  # which is not among the fields as they are shown
    signs = secret.get_secret_value() if secret else ""
    return digest_of(json.dumps(fields.model_dump(mode="json"), sort_keys=True), signs, *more)


def list_json(page: BatchPage, rate_of: Callable[[Batch], Rate | None]) -> dict[str, Any]:
    records = page.records
    return {
        "object": "list",
        "data": [batch_json(record, rate_of(record)) for record in records],
        "first_id": records[0].id if records else None,
        "last_id": records[-1].id if records else None,
        "has_more": page.has_more,
    }


def batch_json(batch: Batch, rate: Rate | None = None) -> dict[str, Any]:
    """`rate`: at which it gets on, where that is known."""
    is_growing = batch.status in (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": _errors(batch.faults),
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status.value,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": int(batch.created_at),
        "in_progress_at": _seconds(batch.in_progress_at),
        "expires_at": int(batch.expires_at),
        "finalizing_at": _seconds(batch.finalizing_at),
        "completed_at": _seconds(batch.completed_at),
        "failed_at": _seconds(batch.failed_at),
        "expired_at": _seconds(batch.expired_at),
        "cancelling_at": _seconds(batch.cancelling_at),
        "cancelled_at": _seconds(batch.cancelled_at),
        "request_counts": _counts(batch),
        "usage": _usage(batch.usage),
        "metadata": batch.metadata or None,
        "partial_output_file_id": output_file_id(batch.id) if is_growing else None,
        "partial_error_file_id": error_file_id(batch.id) if is_growing else None,
        "retry_of": batch.retry_of,
        "eta_s": _rounded(eta_s(batch, rate)),
    }


def progress_json(batch: Batch, rate: Rate | None) -> dict[str, Any]:
    """The data of `event: progress`."""
    return {
        "status": batch.status.value,
        "request_counts": _counts(batch),
        "in_flight": batch.n_in_flight,
        "eta_s": _rounded(eta_s(batch, rate)),
        "lines_per_s": _rounded(rate.lines) if rate else None,
        "tokens_per_s": _rounded(rate.tokens) if rate else None,
        "usage": _usage(batch.usage),
    }


def _errors(faults: tuple[LineFault, ...]) -> dict[str, Any] | None:
    if not faults:
        return None
    told = [{"code": each.code, "line": each.line, "message": each.message, "param": each.param} for each in faults]
    return {"object": "list", "data": told}


def _counts(batch: Batch) -> dict[str, int]:
    return {"total": batch.n_total, "completed": batch.n_completed, "failed": batch.n_failed}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
