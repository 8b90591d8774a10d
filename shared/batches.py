"""A batch: a file of requests on its way to a file of results. Knows no HTTP, no Redis and no JSON of a client.

A line is one request of the file. It is *planned* when it was found to be one, *fed* when it became a job, *collected*
when its record stands in a segment. A segment is a pair of objects of the store, with records of lines that succeeded
and of lines that did not; the segments, one behind the other, are the batch's two files.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from shared.files import Piece
from shared.ids import Kind, digest_of, partition_in
from shared.jobs import Compat
from shared.webhooks import Webhook
from shared.wire import Wire

ANY_ENDPOINT = "*"
"""Of a batch whose lines may each name another path."""

MAX_FAULTS = 1000
"""Bad lines that a batch lists; all of them have their record in the error file."""

MAX_FAULTS_IN_LIST = 10
"""Of these, that it has in a list of batches."""


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    """No line could be run, or the store has lost what told the others."""
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    """Every line has been fed or will not be, for it is over or its time is; the rest is collected."""
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_ended(self) -> bool:
        return self in (self.FAILED, self.COMPLETED, self.EXPIRED, self.CANCELLED)


class LineFault(Wire):
    """What is wrong with a line, or with the file (without a line)."""

    code: str
    message: str
    line: int | None = None
    """In the file, from 1."""
    param: str | None = None


class Usage(Wire):
    """Tokens, summed over lines."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


class Segment(Wire):
    """Records and bytes of the `number`th pair of objects, from 0. Where there are no records there is no object."""

    number: int
    mark: str = Field("", pattern="^[0-9a-f]*$")
    """Of the hold under which it was made. It is in the names of the objects: somebody who was paused while he wrote
    this segment, and has been replaced meanwhile, then writes beside what counts, and not over it."""
    n_output: int = 0
    output_bytes: int = 0
    n_error: int = 0
    error_bytes: int = 0


class Batch(Wire):
    """A batch as the bus has it. Times are Unix seconds on the bus's clock; each is set once."""

    id: str
    tenant: str
    endpoint: str
    """The path that all lines ask, or ANY_ENDPOINT."""
    compat: Compat = Compat.TODAY
    input_file_id: str
    completion_window: str
    """As it was asked for."""
    window_s: float
    output_life_s: float | None = None
    """From the making of its files on; None: as the server keeps files."""
    metadata: dict[str, str] = {}
    webhook: Webhook | None = None
    retry_of: str | None = None
    """The batch whose failed lines these are."""

    status: BatchStatus = BatchStatus.VALIDATING
    created_at: float = 0.0
    in_progress_at: float | None = None
    expires_at: float = 0.0
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None

    model: str | None = None
    """Of all lines, when they name the same one."""
    faults: tuple[LineFault, ...] = ()
    n_total: int = 0
    """Lines of the file that are not blank."""
    n_planned: int = 0
    n_fed: int = 0
    """Of the plan, in its order: the first `n_fed` became jobs, or records at once."""
    plan_offset: int = 0
    """Bytes of the plan that they take."""
    n_in_flight: int = 0
    """Fed and not collected."""
    n_completed: int = 0
    n_failed: int = 0
    """Collected lines, those that were bad too. At the end both together are all."""
    usage: Usage = Usage()
    n_segments: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    """Both None until the end, and for good where a file would be empty."""

    @property
    def n_bad(self) -> int:
        """Lines that were no requests. They have failed from the start, and never can do otherwise."""
        return self.n_total - self.n_planned

    @property
    def n_records(self) -> int:
        """Of both files, as far as they have been written."""
        return self.n_completed + self.n_failed

    @property
    def is_stopping(self) -> bool:
        """No more lines are fed."""
        return self.status in (BatchStatus.CANCELLING, BatchStatus.FINALIZING) or self.status.is_ended


def plan_object(batch_id: str) -> str:
    """Where in the store the plan is: the good lines in the order in which they run."""
    return f"batches/{batch_id}/plan"


def segment_pieces(batch_id: str, segment: Segment) -> tuple[Piece, Piece]:
    """The objects with its outputs and with its errors."""
    stem = f"batches/{batch_id}/{segment.number:06d}{segment.mark and '-'}{segment.mark}"
    return (
        Piece(name=f"{stem}.output", n_bytes=segment.output_bytes),
        Piece(name=f"{stem}.error", n_bytes=segment.error_bytes),
    )


def line_job_id(batch_id: str, line: int) -> str:
    """Of the job that the line becomes, whoever makes it and however often: it lies in the batch's partition."""
    return f"job_{partition_in(batch_id, Kind.BATCH)}_{digest_of(batch_id, str(line))[:24]}"


def output_file_id(batch_id: str) -> str:
    """Of the results: the batch's own digits, so that a file leads to its batch also before it has a record."""
    partition, digits = _parts(batch_id, Kind.BATCH)
    return f"{Kind.FILE}{partition}_{digits}"


def error_file_id(batch_id: str) -> str:
    """Of the errors: its digits turned over, which are never the same."""
    partition, digits = _parts(batch_id, Kind.BATCH)
    return f"{Kind.FILE}{partition}_{_turned(digits)}"


def batches_of_file(file_id: str) -> tuple[str, str]:
    """The batch whose results a file would be, and the one whose errors; most files are neither, and no such batch is.
    ValueError when it is no id of a file."""
    partition, digits = _parts(file_id, Kind.FILE)
    return f"{Kind.BATCH}{partition}_{digits}", f"{Kind.BATCH}{partition}_{_turned(digits)}"


def _parts(text: str, kind: Kind) -> tuple[int, str]:
    return partition_in(text, kind), text.rpartition("_")[2]


def _turned(digits: str) -> str:
    return f"{int(digits, 16) ^ ((1 << 96) - 1):024x}"
