"""The table of errors: whole, and true to llama.cpp's types."""

from __future__ import annotations

import json

import pytest
from starlette.exceptions import HTTPException

from api.problems import LLAMACPP, OLLAMA, OPENAI, TABLE, body_of, family_of, problem_of, response_to
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


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("/v1/chat/completions", OPENAI),
        ("/chat/completions", OPENAI),
        ("/v1", LLAMACPP),
        ("/completion", LLAMACPP),
        ("/api/chat", OLLAMA),
        ("/api/what/ever", OLLAMA),
        ("/apis", LLAMACPP),
    ],
)
def test_a_path_tells_whose_client_asks(path: str, family: object) -> None:
    assert family_of(path) is family


def test_openai_paths_tell_the_param() -> None:
    assert OPENAI.body_of(errors.InvalidRequest("no", param="stop"))["error"]["param"] == "stop"
    assert "param" not in LLAMACPP.body_of(errors.InvalidRequest("no", param="stop"))["error"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.InvalidRequest("Field 'stop': no", param="stop"), "Field 'stop': no"),
        (errors.PromptTooLong("no", n_prompt_tokens=9, n_ctx=8), "the input length exceeds the context length"),
        (errors.UnknownModel("Model 'm' is not served", model="m"), "model 'm' not found"),
        (errors.UnknownModel("a worker's word"), "a worker's word"),
        (errors.Cancelled("gone"), "request canceled"),
        (HTTPException(405), "Method Not Allowed"),
        (KeyError("secret"), "Internal server error"),
    ],
)
def test_ollamas_clients_are_told_a_text_in_its_words(error: Exception, message: str) -> None:
    assert OLLAMA.body_of(error) == {"error": message}


def test_a_full_queue_has_the_status_that_the_asking_client_waits_for() -> None:
    answers = {path: response_to(errors.QueueFull("full"), {"path": path}) for path in ("/completion", "/api/chat")}
    assert {path: answer.status_code for path, answer in answers.items()} == {"/completion": 429, "/api/chat": 503}
    assert all(answer.headers["retry-after"] == "1" for answer in answers.values())


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
