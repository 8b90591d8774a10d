"""How errors look over HTTP: one table from error class to status and type. Knows no route and no Redis.

The body is llama.cpp's, `{"error": {"code", "message", "type"}}` with the HTTP status as `code`; paths of the OpenAI
family add `param`, the field at fault or null; those of ollama's have `{"error": "message"}`. Where an error came in
decides, so that what no route ever sees looks as its client expects.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NotRequired

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope
from typing_extensions import TypedDict

from api.schemas.strict import to_json
from shared import errors


class ErrorDetail(TypedDict):
    code: int
    """The HTTP status."""
    message: str
    """Of a bad field: `Field 'n_predict': …`."""
    type: str
    n_prompt_tokens: NotRequired[int]
    """Of a prompt that is too long, with `n_ctx`."""
    n_ctx: NotRequired[int]


class Error(TypedDict):
    error: ErrorDetail


class ParamErrorDetail(ErrorDetail):
    param: str | None
    """The field at fault."""


class ParamError(TypedDict):
    error: ParamErrorDetail


class OllamaError(TypedDict):
    error: str


class Problem(NamedTuple):
    status: int
    type: str


TABLE: dict[type[errors.SlotstreamError], Problem] = {
    errors.SlotstreamError: Problem(500, "server_error"),
    errors.Rejected: Problem(400, "invalid_request_error"),
    errors.InvalidRequest: Problem(400, "invalid_request_error"),
    errors.PromptTooLong: Problem(400, "exceed_context_size_error"),
    errors.Unauthenticated: Problem(401, "authentication_error"),
    errors.UnknownModel: Problem(404, "model_not_found"),
    errors.UnknownJob: Problem(404, "not_found_error"),
    errors.UnknownFile: Problem(404, "not_found_error"),
    errors.UnknownBatch: Problem(404, "not_found_error"),
    errors.UnknownWebhook: Problem(404, "not_found_error"),
    errors.NotSupported: Problem(501, "not_supported_error"),
    errors.IdempotencyConflict: Problem(409, "idempotency_conflict"),
    errors.Unavailable: Problem(503, "unavailable_error"),
    errors.QueueFull: Problem(429, "rate_limit_error"),
    errors.NotReady: Problem(503, "unavailable_error"),
    errors.BusUnavailable: Problem(503, "unavailable_error"),
    errors.StoreUnavailable: Problem(503, "unavailable_error"),
    errors.Ended: Problem(500, "server_error"),
    # 499 is nginx's "client closed request": no standard status says it, and clients retry 409 and all 5xx.
    errors.Cancelled: Problem(499, "cancelled_error"),
    errors.Expired: Problem(504, "timeout_error"),
    errors.WorkerDied: Problem(500, "server_error"),
    errors.Unreadable: Problem(500, "server_error"),
    errors.EngineFailed: Problem(500, "server_error"),
}

BY_STATUS: dict[int, Problem] = {
    404: Problem(404, "not_found_error"),
    405: Problem(405, "invalid_request_error"),
    408: Problem(408, "timeout_error"),
    413: Problem(413, "invalid_request_error"),
    416: Problem(416, "invalid_request_error"),
    429: Problem(429, "rate_limit_error"),
    505: Problem(505, "not_supported_error"),
}
"""Problems that HTTP itself has, before any job is thought of."""


def new_request_id() -> str:
    """For a request that names itself none."""
    return f"req_{secrets.token_hex(12)}"


def problem_of(error: Exception) -> Problem:
    """The row of an error; a class that is not ours is a fault of the server."""
    if isinstance(error, HTTPException):
        return BY_STATUS.get(error.status_code, Problem(error.status_code, "invalid_request_error"))
    for cls in type(error).__mro__:
        if cls in TABLE:
            return TABLE[cls]
    return TABLE[errors.SlotstreamError]


def body_of(error: Exception, *, with_param: bool = False) -> dict[str, Any]:
    """The error object. What a bug says stays in the log."""
    problem = problem_of(error)
    described: dict[str, Any] = {
        "code": problem.status,
        "message": _message(error),
        "type": problem.type,
    }
    if isinstance(error, errors.PromptTooLong):
        described |= {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
    if with_param:
        described["param"] = error.param if isinstance(error, errors.SlotstreamError) else None
    return {"error": described}


def ollama_body_of(error: Exception) -> dict[str, Any]:
    """ollama's: a text alone, in its own words where it has any."""
    match error:
        case errors.PromptTooLong():
            message = "the input length exceeds the context length"
        case errors.QueueFull():
            message = "server busy, please try again.  maximum pending requests exceeded"
        case errors.UnknownModel(model=str(name)):
            message = f"model '{name}' not found"
        case errors.Cancelled():
            message = "request canceled"
        case _:
            message = _message(error)
    return {"error": message}


class Family(NamedTuple):
    """How those who speak one language of ours are told of an error."""

    form: type
    """Of the body, for the API's description of itself."""
    body_of: Callable[[Exception], dict[str, Any]]
    statuses: Mapping[type[Exception], int] = {}
    """Where they expect another one than the table's."""

    def status_of(self, error: Exception) -> int:
        return self.statuses.get(type(error), problem_of(error).status)


LLAMACPP = Family(Error, body_of)
OPENAI = Family(ParamError, lambda error: body_of(error, with_param=True))
OLLAMA = Family(OllamaError, ollama_body_of, {errors.QueueFull: 503})

_FAMILIES: dict[tuple[str, ...], Family] = {("/v1/", "/chat/", "/responses"): OPENAI, ("/api/",): OLLAMA}


def family_of(path: str) -> Family:
    """Whose path it is, also one that nobody answers."""
    return next((family for prefixes, family in _FAMILIES.items() if path.startswith(prefixes)), LLAMACPP)


def response_to(error: Exception, scope: Scope) -> Response:
    """The whole answer, with `Retry-After` where waiting helps."""
    family = family_of(scope["path"])
    status = family.status_of(error)
    headers: dict[str, str] = dict(getattr(error, "headers", None) or {})
    if isinstance(error, errors.Unavailable):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, errors.NotSupported):
        headers["X-Should-Retry"] = "false"  # OpenAI's clients take a 501 for a passing fault
    if isinstance(error, errors.Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    return Response(
        to_json(family.body_of(error)),
        status,
        headers,
        media_type="application/json; charset=utf-8",
    )


async def on_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for our tree and for HTTP's own errors."""
    return response_to(error, request.scope)


def _message(error: Exception) -> str:
    if isinstance(error, errors.SlotstreamError):
        return error.message
    if isinstance(error, HTTPException):
        return "File Not Found" if error.status_code == 404 else error.detail
    return "Internal server error"
