"""Which event an end is, and that it is the same one however often it is made."""

from __future__ import annotations

import json

import pytest

from api.webhooks.events import Event, batch_event, job_event
from shared.batches import BatchStatus
from shared.ids import Kind, new_id, partition_in
from shared.jobs import JobStatus
from shared.webhooks import BATCH_EVENTS, EVENT_TYPES, JOB_EVENTS, RESPONSE_EVENTS

JOB, BATCH = "job_3_" + "a" * 24, "batch_2_" + "b" * 24
ENDED_JOBS = [status for status in JobStatus if status.is_ended]
ENDED_BATCHES = [status for status in BatchStatus if status.is_ended]


def test_every_end_is_an_event_that_can_be_asked_for_and_no_other_is() -> None:
    jobs = {job_event(JOB, "/completion", status, 0).type for status in ENDED_JOBS}
    responses = {
        job_event(JOB, "/v1/responses", status, 0, is_cut=is_cut).type
        for status in ENDED_JOBS
        for is_cut in ({False, status is JobStatus.SUCCEEDED})
    }
    batches = {batch_event(BATCH, status, 0).type for status in ENDED_BATCHES}
    assert (jobs, responses, batches) == (set(JOB_EVENTS), set(RESPONSE_EVENTS), set(BATCH_EVENTS))
    assert jobs | responses | batches == set(EVENT_TYPES)


@pytest.mark.parametrize(
    ("status", "is_cut", "told"),
    [
        (JobStatus.SUCCEEDED, False, "response.completed"),
        (JobStatus.SUCCEEDED, True, "response.incomplete"),
        (JobStatus.EXPIRED, False, "response.failed"),
        (JobStatus.CANCELLED, False, "response.cancelled"),
    ],
)
def test_a_background_response_is_told_of_by_its_own_id(status: JobStatus, is_cut: bool, told: str) -> None:
    event = job_event(JOB, "/v1/responses", status, 0, is_cut=is_cut)
    assert (event.type, event.subject) == (told, "resp_3_" + "a" * 24)


def test_what_is_told_is_thin_and_in_the_shape_that_clients_know() -> None:
    event = batch_event(BATCH, BatchStatus.COMPLETED, 1764568205.25)
    assert json.loads(event.body) == {
        "id": event.id,
        "object": "event",
        "type": "batch.completed",
        "created_at": 1764568205,
        "timestamp": "2025-12-01T05:50:05.250Z",
        "data": {"id": BATCH},
    }
    assert len(event.body) < 500
    assert event.id.startswith("evt_2_")


def test_the_same_end_is_the_same_event_and_goes_to_an_endpoint_once() -> None:
    here, there = new_id(Kind.ENDPOINT, 5), new_id(Kind.ENDPOINT, 5)
    event = job_event(JOB, "/completion", JobStatus.FAILED, 7.5)
    assert event == job_event(JOB, "/completion", JobStatus.FAILED, 7.5)
    assert event.to(here) == event.to(here)
    assert event.to(here).id != event.to(there).id
    assert partition_in(event.to(here).id, Kind.DELIVERY) == 5
    others: list[Event] = [
        job_event(JOB, "/completion", JobStatus.SUCCEEDED, 7.5),
        job_event(JOB.replace("a", "b"), "/completion", JobStatus.FAILED, 7.5),
    ]
    assert not {event.id} & {other.id for other in others}


@pytest.mark.parametrize("text", ["", "job_x_1", "batch_0_1", "resp_0_" + "a" * 24])
def test_what_is_no_id_is_nobodys_event(text: str) -> None:
    with pytest.raises(ValueError):
        job_event(text, "/completion", JobStatus.FAILED, 0)
    with pytest.raises(ValueError):
        batch_event(text, BatchStatus.FAILED, 0)
