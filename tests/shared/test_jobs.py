from __future__ import annotations

import json

import pytest

from shared.jobs import (
    Adapter,
    ApplyTemplate,
    Chat,
    Completion,
    Embedding,
    GetProperties,
    Job,
    Request,
    Rerank,
    Tokenize,
    ToolUse,
    Truncation,
)

CALLING = Chat(
    messages=({"role": "user", "content": "a"},),
    tool_use=ToolUse(tools=({"type": "function", "function": {"name": "f"}},)),
)


@pytest.mark.parametrize("prompt", ["Hello", [1, "two"]])
def test_a_completion_that_an_older_version_queued_is_read(prompt: str | list[int | str]) -> None:
    queued = {"id": "job_0_0a", "model": "m", "request": {"kind": "completion", "prompt": prompt, "n_predict": 3}}
    request = Job.from_json(json.dumps(queued)).request
    assert isinstance(request, Completion)
    assert request.prompts == (prompt if isinstance(prompt, str) else tuple(prompt),)
    assert Job.from_json(Job.from_json(json.dumps(queued)).to_json()).request == request


@pytest.mark.parametrize(("normalize", "norm"), [(True, 2), (False, -1)])
def test_an_embedding_that_an_older_version_queued_is_read(normalize: bool, norm: int) -> None:
    queued = {"id": "job_0_0a", "model": "m", "request": {"kind": "embedding", "inputs": ["a"], "normalize": normalize}}
    request = Job.from_json(json.dumps(queued)).request
    assert isinstance(request, Embedding)
    assert request.norm == norm


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (Completion(prompts=("a",)), 2),
        (Tokenize(content="a"), 2),
        (Completion(prompts=("a",), lora=(Adapter(id=0, scale=1.0),)), 3),
        (Completion(prompts=("a",), lora=()), 3),
        (Completion(prompts=("a",), id_slot=0), 3),
        (Embedding(inputs=("a",)), 3),
        (Rerank(query="a", documents=("b",)), 3),
        (Completion(prompts=("a",), n_ctx=64), 4),
        (Chat(messages=({"role": "user", "content": "a"},), truncate=Truncation.MESSAGES), 4),
        (ApplyTemplate(chat=CALLING), 4),
        (CALLING, 4),
        (Embedding(inputs=("a",), truncates=True), 4),
        (GetProperties(), 4),
    ],
)
def test_a_job_asks_for_no_newer_worker_than_it_needs(request_: Request, version: int) -> None:
    assert Job(id="job_0_0a", model="m", request=request_).version == version


def test_a_line_of_a_batch_waits_for_a_worker_that_knows_of_batches() -> None:
    assert Job(id="job_0_0a", model="m", request=Tokenize(content="a"), batch="batch_0_0a").version == 5
