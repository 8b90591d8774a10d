"""What is recorded of a line of a batch: its answer as its path would have given it, or why there is none.

Knows no store: a line's place in the plan is read by whoever asks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import structlog

from api.lines.record import Subject, answered, unanswered
from api.problems import family_of
from api.rendering import rendered
from api.schemas.answers import failure_of
from api.schemas.results import result_of, usage_json_of
from api.schemas.strict import to_json
from api.tasks.batches.making import ask_of_line, beside
from api.tasks.batches.plan import PlannedLine, PlanText, identity_of, read_plan_text
from shared.batches import Batch, BatchStatus, Usage, line_job_id
from shared.bus import EndedLine
from shared.errors import SlotstreamError
from shared.events import Failure, Finished
from shared.jobs import JobRecord, JobStatus

EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "This request was cancelled before it was done.")
LOST = ("job_lost", "The queue lost this request.")

log = structlog.get_logger(__name__)


class Said(NamedTuple):
    record: bytes
    is_failed: bool
    usage: Usage = Usage()


async def said_of(batch: Batch, text: PlanText, ended: EndedLine, job: JobRecord | None) -> Said:
    """Of a line that was fed, and of what became of it; `job` is None where there never was one, or it has vanished."""
    planned = await beside(text.stop - text.start, lambda: read_plan_text(text.text))
    if ended.refusal is not None:
        return _refused(batch, planned, Failure.from_json(ended.refusal).to_error())
    finished = job.finished if job is not None else None
    if job is None or finished is None:
        return unfed(batch, planned, LOST)
    match job.status:
        case JobStatus.SUCCEEDED:
            return await _succeeded(batch, planned, text, job, finished)
        case JobStatus.EXPIRED:
            return unfed(batch, planned, EXPIRED)
        case JobStatus.CANCELLED:
            return unfed(batch, planned, why_stopped(batch))
    return _refused(batch, planned, failure_of(finished) or SlotstreamError("The job failed"))


def why_stopped(batch: Batch) -> tuple[str, str]:
    """Code and message of lines that were stopped, or never begun: who cancels a line of a batch that runs on cancels
    that line, and in one that is being finalized its time is over."""
    return EXPIRED if batch.status is BatchStatus.FINALIZING else CANCELLED


def unfed(batch: Batch, planned: PlannedLine, why: tuple[str, str]) -> Said:
    """Of a line without an answer."""
    code, message = why
    return Said(unanswered(_subject(batch, planned), code=code, message=message), is_failed=True)


async def _succeeded(batch: Batch, planned: PlannedLine, text: PlanText, job: JobRecord, finished: Finished) -> Said:
    try:
        ask = await beside(text.stop - text.start, lambda: ask_of_line(batch, planned))
        usage = _usage(usage_json_of(finished, ask))
        bodies: list[Any] = []

        def body() -> Any:
            bodies.append(result_of(job, finished, ask))
            return bodies[0]

        answer = await rendered([finished], body)
    except Exception:  # the border: one answer that cannot be told must not hold up all others
        log.exception("an answer cannot be told", batch=batch.id, line=planned.number)
        return _refused(batch, planned, SlotstreamError("Internal server error"))
    record = answered(_subject(batch, planned), status=200, request_id=job.id, body=answer)
    return Said(record, False, usage.model_copy(update={"reasoning_tokens": _reasoning_tokens(bodies[0])}))


def _refused(batch: Batch, planned: PlannedLine, error: SlotstreamError) -> Said:
    """As an answer over HTTP would have told it. What became no job has the id that the job would have had."""
    family = family_of(planned.url)
    body = to_json(family.body_of(error))
    request_id = line_job_id(batch.id, planned.number)
    record = answered(_subject(batch, planned), status=family.status_of(error), request_id=request_id, body=body)
    return Said(record, is_failed=True)


def _subject(batch: Batch, planned: PlannedLine) -> Subject:
    return Subject(identity_of(batch.id, planned.number), planned.number, planned.custom_id)


def _usage(told: dict[str, Any]) -> Usage:
    return Usage(
        input_tokens=told["prompt_tokens"],
        cached_tokens=told.get("prompt_tokens_details", {}).get("cached_tokens", 0),
        output_tokens=told.get("completion_tokens", 0),
    )


def _reasoning_tokens(body: Any) -> int:
    """Those that an answer tells of; most families have no word for them."""
    match body:
        case {"usage": {"output_tokens_details": {"reasoning_tokens": int(count)}}}:
            return count
    return 0
