"""The table of errors: whole, and true to llama.cpp's types."""

from __future__ import annotations

import json

import pytest
from starlette.exceptions import HTTPException

from api.problems import TABLE, body_of, has_param, problem_of, response_to
from shared import errors


def test_the_table_has_every_class_of_the_tree_and_no_other() -> None:
    assert set(TABLE) == set(errors.BY_CODE.values())


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.InvalidRequest("x"), 400, "invalid_request_error"),
        (errors.PromptTooLong("x", n_prompt_tokens=9, n_ctx=8), 400, "exceed_context_size_error"),
        (errors.Unauthenticated("x"), 401, "authentication_error"),
        (errors.UnknownModel("x"), 404, "model_not_found"),
        (errors.UnknownJob("x"), 404, "not_found_error"),
        (errors.IdempotencyConflict("x"), 409, "idempotency_conflict"),
        (errors.QueueFull("x"), 429, "rate_limit_error"),
        (errors.NotSupported("x"), 501, "not_supported_error"),
        (errors.NotReady("x"), 503, "unavailable_error"),
        (errors.BusUnavailable("x"), 503, "unavailable_error"),
        (errors.EngineFailed("x"), 500, "server_error"),
        (HTTPException(404), 404, "not_found_error"),
        (HTTPException(405), 405, "invalid_request_error"),
        (HTTPException(413), 413, "invalid_request_error"),
        (KeyError("x"), 500, "server_error"),
    ],
)
def test_an_error_has_its_status_and_type(error: Exception, status: int, kind: str) -> None:
    assert problem_of(error) == (status, kind)


def test_a_subclass_that_the_table_forgot_is_its_parents_problem() -> None:
    class Odd(errors.QueueFull):
        pass

    assert problem_of(Odd("x")).status == 429


def test_the_code_in_the_body_is_the_status() -> None:
    assert body_of(errors.InvalidRequest("no", param="stop")) == {
        "error": {"code": 400, "message": "no", "type": "invalid_request_error"}
    }


def test_openai_paths_tell_the_param() -> None:
    assert has_param("/v1/chat/completions") and has_param("/chat/completions")
    assert not has_param("/completion")
    error = body_of(errors.InvalidRequest("no", param="stop"), with_param=True)["error"]
    assert error["param"] == "stop"


def test_a_long_prompt_tells_both_numbers() -> None:
    error = body_of(errors.PromptTooLong("no", n_prompt_tokens=9, n_ctx=8))["error"]
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (9, 8)


def test_an_unknown_path_is_llamacpps_file_not_found() -> None:
    assert body_of(HTTPException(404))["error"]["message"] == "File Not Found"


def test_a_bug_does_not_tell_its_secrets() -> None:
    assert "secret" not in json.dumps(body_of(KeyError("secret")))


@pytest.mark.parametrize(("wait_s", "header"), [(0.0, "1"), (1.0, "1"), (2.1, "3"), (60.0, "60")])
def test_waiting_is_told_in_whole_seconds(wait_s: float, header: str) -> None:
    response = response_to(errors.QueueFull("full", retry_after_s=wait_s), {"path": "/completion"})
    assert response.headers["retry-after"] == header
