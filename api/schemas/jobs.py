"""The jobs API's own JSON: what makes a job, how a job looks, and what its events look like.

A job's result is the body its endpoint would have answered, rendered anew from the client's JSON and the stored
ending each time it is read; everything in it is a function of the record, so that two reads are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from api.problems import body_of
from api.schemas.answers import failure_of, timings_json
from api.schemas.dialect import ENDPOINTS
from api.schemas.logprobs import chat_json
from api.schemas.metadata import Metadata
from api.schemas.results import ask_of, result_of, usage_json_of
from api.schemas.strict import OwnFields, bad_field
from api.schemas.webhook import WebhookFields
from shared.bus import JobPage
from shared.events import Finished, Tokens
from shared.jobs import JobRecord, JobStatus, Lane

MAX_DEADLINE_S = 30 * 86400.0
MAX_PAGE = 100

_DIGITS = re.compile(r"[0-9]{1,15}", re.ASCII)


def _whole_number(text: Any) -> int:
    """Of a header or a query. Python would take more for a number than a client can mean."""
    if not isinstance(text, str) or not _DIGITS.fullmatch(text):
        raise ValueError("must be a whole number")
    return int(text)


WholeNumber = Annotated[int, BeforeValidator(_whole_number)]


class JobFields(OwnFields):
    """The body of `POST /v1/jobs`."""

    endpoint: Annotated[str, Field(json_schema_extra={"enum": list(ENDPOINTS)})]
    body: dict[str, Any]
    priority: Lane | None = Field(None, strict=False)
    deadline_s: float | None = Field(None, gt=0, le=MAX_DEADLINE_S)
    webhook: WebhookFields | None = None
    metadata: Metadata = {}


class ListFields(OwnFields):
    """The query of `GET /v1/jobs`."""

    status: JobStatus | None = Field(None, strict=False)
    limit: WholeNumber = Field(20, ge=1, le=MAX_PAGE)
    after: str | None = None


class EventsFields(OwnFields):
    """The query of `GET /v1/jobs/{id}/events`."""

    starting_after: WholeNumber = 0


def event_number(name: str, text: str) -> int:
    """The number of an event, out of the header `name`. Raises InvalidRequest."""
    try:
        return _whole_number(text)
    except ValueError as error:
        raise bad_field(name, str(error)) from None


WaitingFor = Callable[[str], str | None]
"""What jobs for a model wait for besides their turn."""


def list_json(page: JobPage, waiting_for: WaitingFor) -> dict[str, Any]:
    """A page as OpenAI lists things, without what is large. `last_id` is where the next one begins: a page that was
    searched for a status may end with a job that is not on it."""
    return {
        "object": "list",
        "data": [job_json(record, waiting_for) for record in page.records],
        "first_id": page.records[0].id if page.records else None,
        "last_id": page.last_id,
        "has_more": page.has_more,
    }


def job_json(record: JobRecord, waiting_for: WaitingFor) -> dict[str, Any]:
    """`result_omitted` is there, and true, when the record is too brief to tell the result and its usage."""
    finished = record.finished
    is_omitted = record.is_brief and record.status is JobStatus.SUCCEEDED
    answered = finished if record.status is JobStatus.SUCCEEDED and not is_omitted else None
    # Of a job that nobody keeps a body of, the answer went to the client that waited.
    ask = ask_of(record) if answered and record.body is not None else None
    told = {
        "id": record.id,
        "object": "job",
        "status": record.status.value,
        "endpoint": record.endpoint,
        "model": record.model,
        "priority": record.lane.value,
        "created_at": int(record.created_at),
        "started_at": _seconds(record.started_at),
        "ended_at": _seconds(record.ended_at),
        "deadline_at": int(record.deadline_at),
        "attempts": record.attempts,
        "position": record.position,
        "eta_s": record.eta_s,
        "waiting_for": waiting_for(record.model) if record.status is JobStatus.QUEUED else None,
        "usage": usage_json_of(answered, ask) if answered else None,
        "result": result_of(record, answered, ask) if answered and ask else None,
        "error": _error(finished) if finished is not None else None,
        "metadata": record.metadata,
    }
    return told | {"result_omitted": True} if is_omitted else told


def token_json(tokens: Tokens) -> dict[str, Any]:
    """An event's data. Probabilities come with it when they were asked for, timings too."""
    told: dict[str, Any] = {"text": tokens.text, "index": tokens.index}
    if tokens.logprobs:
        told["logprobs"] = chat_json(tokens.logprobs, is_post_sampling=False)["content"]
    if tokens.timings is not None:
        told["timings"] = timings_json(tokens.timings)
    return told


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)


def _error(finished: Finished) -> dict[str, Any] | None:
    failure = failure_of(finished)
    if failure is None:
        return None
    described: dict[str, Any] = body_of(failure, with_param=True)["error"]
    return described
