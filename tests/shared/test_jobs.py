from __future__ import annotations

import json

import pytest

from shared.jobs import Completion, Job


@pytest.mark.parametrize("prompt", ["Hello", [1, "two"]])
def test_a_completion_that_an_older_version_queued_is_read(prompt: str | list[int | str]) -> None:
    queued = {"id": "job_0_0a", "model": "m", "request": {"kind": "completion", "prompt": prompt, "n_predict": 3}}
    request = Job.from_json(json.dumps(queued)).request
    assert isinstance(request, Completion)
    assert request.prompts == (prompt if isinstance(prompt, str) else tuple(prompt),)
    assert Job.from_json(Job.from_json(json.dumps(queued)).to_json()).request == request
