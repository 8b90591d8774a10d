"""Events: what the end of a job or batch is called, and what is told of it. Pure.

The same end makes the same event, id and text alike, whoever makes it and however often.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from api.schemas.responses.body import response_id_of
from api.schemas.strict import to_json
from shared.batches import BatchStatus
from shared.ids import Kind, derived_id, partition_in
from shared.jobs import JobStatus, partition_of
from shared.webhooks import Delivery

RESPONSES = frozenset({"/v1/responses", "/responses"})
"""The paths whose jobs are responses."""

_OF_RESPONSES = {
    JobStatus.SUCCEEDED: "response.completed",
    JobStatus.FAILED: "response.failed",
    JobStatus.EXPIRED: "response.failed",
    JobStatus.CANCELLED: "response.cancelled",
}

CUT_RESPONSE = "response.incomplete"
"""Of one that reached its limit of tokens: its job has succeeded."""


class Event(NamedTuple):
    id: str
    type: str
    subject: str
    """The id of what ended, as clients know it."""
    at: float
    """Unix seconds."""

    @property
    def body(self) -> str:
        """OpenAI's shape, and what Standard Webhooks asks for besides. It tells no more than that something ended: the
        rest is behind the API's keys."""
        moment = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = {
            "id": self.id,
            "object": "event",
            "type": self.type,
            "created_at": int(self.at),
            "timestamp": moment,
            "data": {"id": self.subject},
        }
        return to_json(fields).decode()

    def to(self, endpoint_id: str) -> Delivery:
        """This event on its way to an endpoint; it lives where the endpoint does. ValueError for what is none's id."""
        partition = partition_in(endpoint_id, Kind.ENDPOINT)
        return Delivery(
            id=derived_id(Kind.DELIVERY, partition, self.id, endpoint_id),
            endpoint_id=endpoint_id,
            event_id=self.id,
            event_type=self.type,
            body=self.body,
            created_at=self.at,
        )


def job_event(job_id: str, endpoint: str, status: JobStatus, at: float, *, is_cut: bool = False) -> Event:
    """Of a job of the path `endpoint`. `is_cut`: it is a response that reached its limit of tokens. ValueError for what
    is no job's id."""
    if endpoint not in RESPONSES:
        return _event(partition_of(job_id), job_id, f"job.{status}", at)
    kind = CUT_RESPONSE if is_cut else _OF_RESPONSES[status]
    return _event(partition_of(job_id), response_id_of(job_id), kind, at)


def batch_event(batch_id: str, status: BatchStatus, at: float) -> Event:
    """ValueError for what is no batch's id."""
    return _event(partition_in(batch_id, Kind.BATCH), batch_id, f"batch.{status}", at)


def _event(partition: int, subject: str, kind: str, at: float) -> Event:
    return Event(derived_id(Kind.EVENT, partition, subject, kind), kind, subject, at)
