"""How a batch is asked for, and how it looks."""

from __future__ import annotations

import base64
from typing import Any

import openai.types
import pytest
from pydantic import TypeAdapter

from api.batches.pace import Rate
from api.openapi import answers
from api.schemas.batches import BatchFields, RetryFields, batch_json, fingerprint, progress_json
from api.schemas.strict import read, to_json
from shared.batches import Batch, BatchStatus, LineFault, Usage
from shared.errors import InvalidRequest

ASKED: dict[str, Any] = {"input_file_id": "file-0_a", "endpoint": "/v1/completions", "completion_window": "24h"}
SECRET, OTHER = (f"whsec_{base64.b64encode(bytes([byte]) * 24).decode()}" for byte in (1, 2))
BATCH = Batch(
    id="batch_0_0123456789abcdef01234567",
    tenant="me",
    endpoint="/v1/completions",
    input_file_id="file-0_a",
    completion_window="24h",
    window_s=86400,
    created_at=1000.9,
    expires_at=87400.9,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("input_file_id", None), ("endpoint", None), ("completion_window", None)],
        *[("input_file_id", 3), ("endpoint", "/v1/moderations"), ("endpoint", "v1/completions"), ("endpoint", "")],
        *[("completion_window", each) for each in ("", "0s", "31d", "1 h", 24, "24h\n")],
        *[("metadata", each) for each in ([], {"a": 1}, {"a" * 65: "b"}, {"": "b"}, {"a": "b" * 513})],
        ("metadata", {str(place): "" for place in range(17)}),
        *[("output_expires_after", each) for each in ({}, {"anchor": "now", "seconds": 3600}, {"seconds": 3600}, 3600)],
        *[("output_expires_after", {"anchor": "created_at", "seconds": s}) for s in (3599, 2592001, "3600", 3600.5)],
    ],
)
def test_a_field_that_will_not_do_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"^Field '{field}"):
        read(BatchFields, ASKED | {field: value})


def test_what_openai_may_send_besides_is_let_through() -> None:
    fields = read(BatchFields, ASKED | {"new": 1, "metadata": None, "output_expires_after": None})
    assert (fields.metadata, fields.output_life_s) == ({}, None)
    life = {"anchor": "created_at", "seconds": 3600, "new": 1}
    assert read(BatchFields, ASKED | {"output_expires_after": life}).output_life_s == 3600


def test_what_a_retry_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="endpoint"):
        read(RetryFields, {"endpoint": "/v1/completions"})


def test_two_requests_are_the_same_when_they_ask_for_the_same() -> None:
    metadata = {"a": "1", "b": "2"}
    one = fingerprint(read(BatchFields, ASKED | {"metadata": metadata, "new": 1}))
    assert one == fingerprint(read(BatchFields, ASKED | {"metadata": dict(reversed(metadata.items()))}))
    others = [{}, {"metadata": {"a": "1"}}, {"metadata": metadata, "completion_window": "23h"}]
    hook = {"url": "https://example.com"}
    others += [{"metadata": metadata, "webhook": hook | more} for more in ({}, {"secret": SECRET}, {"secret": OTHER})]
    assert len({one, *(fingerprint(read(BatchFields, ASKED | other)) for other in others)}) == 1 + len(others)


def test_a_batch_is_one_to_openai_s_client() -> None:
    told = batch_json(BATCH)
    TypeAdapter(answers.Batch).validate_json(to_json(told), strict=True)
    assert openai.types.Batch.model_fields.keys() < told.keys()
    batch = openai.types.Batch.model_validate(told, strict=True)
    assert (batch.status, batch.created_at, batch.expires_at) == ("validating", 1000, 87400)
    assert batch.metadata is None and batch.errors is None and batch.output_file_id is None
    assert batch.request_counts == openai.types.batch.BatchRequestCounts(total=0, completed=0, failed=0)


def test_a_batch_tells_its_bad_lines_and_its_tokens() -> None:
    faults = (LineFault(code="invalid_json", message="no JSON", line=3, param="body"), LineFault(code="x", message="y"))
    usage = Usage(input_tokens=10, cached_tokens=4, output_tokens=5, reasoning_tokens=2)
    told = batch_json(BATCH.model_copy(update={"faults": faults, "usage": usage, "metadata": {"a": "b"}}))
    TypeAdapter(answers.Batch).validate_json(to_json(told), strict=True)
    batch = openai.types.Batch.model_validate(told, strict=True)
    assert batch.errors and batch.errors.data and batch.errors.object == "list"
    assert [(fault.code, fault.line, fault.param) for fault in batch.errors.data] == [
        ("invalid_json", 3, "body"),
        ("x", None, None),
    ]
    assert batch.usage and batch.usage.total_tokens == 15
    assert batch.usage.input_tokens_details.cached_tokens == 4
    assert batch.usage.output_tokens_details.reasoning_tokens == 2
    assert batch.metadata == {"a": "b"}


@pytest.mark.parametrize("status", BatchStatus)
def test_files_that_grow_are_named_while_they_do(status: BatchStatus) -> None:
    told = batch_json(BATCH.model_copy(update={"status": status}))
    partial = {told["partial_output_file_id"], told["partial_error_file_id"]}
    is_growing = not status.is_ended and status is not BatchStatus.VALIDATING
    assert len(partial) == (2 if is_growing else 1) and (None in partial) != is_growing


def test_progress_tells_rates_when_there_are_some() -> None:
    running = BATCH.model_copy(update={"n_total": 10, "n_planned": 9, "n_failed": 1})
    running = running.model_copy(update={"status": BatchStatus.IN_PROGRESS, "n_in_flight": 9})
    told = progress_json(running, None)
    assert (told["in_flight"], told["eta_s"], told["lines_per_s"], told["tokens_per_s"]) == (9, None, None, None)
    told = progress_json(running, Rate(3.0, 1 / 3))
    assert (told["eta_s"], told["lines_per_s"], told["tokens_per_s"]) == (3.0, 3.0, 0.333)
    TypeAdapter(answers.BatchProgress).validate_json(to_json(told), strict=True)
    assert batch_json(running, Rate(3.0, 0))["eta_s"] == 3.0
