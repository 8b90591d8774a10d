"""One OpenAPI 3.1 document of all routes, made of what their functions say of themselves. Knows no path by name.

Words are the functions' and modules' own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import JsonSchemaValue
from starlette.routing import BaseRoute, Route

from api.access import OPEN
from api.openapi.description import Description, Operation, Reach, operations_of
from api.openapi.schemas import QuerySchema, Schemas, without_null
from api.problems import BY_STATUS, TABLE, family_of

JSON = "application/json"
FORM = "multipart/form-data"

_INTRODUCTION = """\
Requests become jobs in a queue; workers that run llama.cpp answer them.

Bodies are strict JSON, whatever their content type says: NaN, infinities, lone surrogates and numbers of the wrong type
are refused with 400 and the field's name. null means absent. Paths that other servers have too ignore unknown fields,
those of jobs refuse them. Any model's name is taken while one model is served; while several are, it must be one of
them. Every answer has an X-Request-Id.

Where a server runs with --compat 2024, some answers are those of llama.cpp's server of May 2024, and not these."""

_HEADERS: dict[str, tuple[str, JsonSchemaValue]] = {
    "X-Request-Id": ("Of this request: its own, or one that was made for it.", {"type": "string"}),
    "X-Job-Id": ("Of the one job behind the answer.", {"type": "string"}),
    "Retry-After": ("Seconds after which to come again.", {"type": "integer", "minimum": 1}),
}
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}


def document_of(routes: Sequence[BaseRoute], prefix: str = "") -> dict[str, Any]:
    """The document as JSON values. `prefix` stands before all paths."""
    operations = [operation for route in routes if isinstance(route, Route) for operation in operations_of(route)]
    schemas = Schemas([form for operation in operations for form in _forms(operation)])
    failures: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    first_of: dict[tuple[str, object], str] = {}
    for operation in operations:
        told = _operation_json(operation, schemas, failures)
        first = first_of.setdefault((operation.method, operation.endpoint), operation.path)
        if first != operation.path:
            told["x-same-as"] = first
        paths.setdefault(operation.path, {})[operation.method.lower()] = told
    return {
        "openapi": "3.1.0",
        "info": {"title": "slotstream", "version": version("slotstream"), "description": _INTRODUCTION},
        "servers": [{"url": prefix or "/"}],
        "security": [{}, *({name: []} for name in _SECURITY)],
        "tags": [{"name": name, "description": words} for name, words in _tags(operations).items()],
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "responses": dict(sorted(failures.items())),
            "securitySchemes": _SECURITY,
            "headers": {name: {"description": words, "schema": schema} for name, (words, schema) in _HEADERS.items()},
        },
    }


def _forms(operation: Operation) -> Iterator[Any]:
    """Every type whose schema is wanted."""
    yield family_of(operation.path).form
    if (description := operation.description) is not None:
        yield from (description.reads, description.form, description.gives, *description.also.values())
        yield from (stream.piece for stream in description.streams)


def _operation_json(operation: Operation, schemas: Schemas, failures: dict[str, Any]) -> dict[str, Any]:
    """`failures` gets the errors that it may answer with, which others share."""
    description = operation.description
    told: dict[str, Any] = {"operationId": _id_of(operation), "tags": [_tag_of(operation)]}
    if description is None:
        return told | {"responses": {}}
    told["summary"] = description.summary
    if words := inspect.getdoc(operation.endpoint):
        told["description"] = words
    if parameters := [*_path_parameters(operation), *_queries(description), *_header_parameters(description)]:
        told["parameters"] = parameters
    if description.reads is not None:
        body = {"schema": schemas.of(description.reads)}
        told["requestBody"] = {"required": description.needs_body, "content": {JSON: body}}
    elif description.form is not None:
        told["requestBody"] = {"required": True, "content": {FORM: {"schema": schemas.of(description.form)}}}
    told["responses"] = dict(_answers(description, schemas))
    form = family_of(operation.path).form
    for status in sorted(_failing(operation, description)):
        name = f"{form.__name__}{status}"
        failures[name] = _failure(status, schemas.of(form))
        told["responses"][str(status)] = {"$ref": f"#/components/responses/{name}"}
    if operation.path in OPEN:
        told["security"] = []
    return told


def _id_of(operation: Operation) -> str:
    words = operation.path.replace("{", "").replace("}", "").strip("/").replace("-", "_").split("/")
    return "_".join((operation.method.lower(), *(word for word in words if word)))


def _tag_of(operation: Operation) -> str:
    return operation.endpoint.__module__.rpartition(".")[2]


def _tags(operations: Sequence[Operation]) -> dict[str, str]:
    """A tag for each module of routes, in the words with which it opens."""
    modules = {_tag_of(operation): operation.endpoint.__module__ for operation in operations}
    return {tag: (inspect.getdoc(sys.modules[name]) or "").partition("\n\n")[0] for tag, name in modules.items()}


def _path_parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for piece in operation.path.split("{")[1:]:
        name = piece.partition("}")[0]
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _queries(description: Description) -> Iterator[dict[str, Any]]:
    if description.query is None:
        return
    schema = description.query.model_json_schema(schema_generator=QuerySchema)
    definitions = schema.get("$defs", {})
    for name, value in schema["properties"].items():
        told = {"name": name, "in": "query", "required": name in schema.get("required", ())}
        if words := value.pop("description", None):
            told["description"] = words
        yield told | {"schema": _resolved(without_null(value), definitions)}


def _resolved(schema: JsonSchemaValue, definitions: Mapping[str, JsonSchemaValue]) -> JsonSchemaValue:
    reference = schema.pop("$ref", None)
    return {**schema, **definitions[reference.rpartition("/")[2]]} if reference else schema


def _header_parameters(description: Description) -> Iterator[dict[str, Any]]:
    for name, words in description.headers.items():
        yield {"name": name, "in": "header", "required": False, "description": words, "schema": {"type": "string"}}


def _answers(description: Description, schemas: Schemas) -> Iterator[tuple[str, dict[str, Any]]]:
    headers = ["X-Request-Id", *(["X-Job-Id"] if _tells_job(description) else [])]
    content = {JSON: {"schema": schemas.of(description.gives)}} if description.gives is not None else {}
    content |= {kind: {"schema": {"type": "string"}} for kind in description.gives_text}
    for stream in description.streams:
        # No schema of the whole: who reads the document takes that for one of each event.
        content[stream.media_type] = {"x-piece": schemas.of(stream.piece)}
    if content:
        yield "200", _response("The answer.", headers, content)
    for status, form in description.also.items():
        content = {} if form is None else {JSON: {"schema": schemas.of(form)}}
        yield str(status), _response(_MEANINGS.get(status, "The answer."), headers, content)


def _tells_job(description: Description) -> bool:
    return description.reach is Reach.JOB if description.tells_job is None else description.tells_job


def _failing(operation: Operation, description: Description) -> set[int]:
    """Statuses of errors that may come."""
    statuses = {*description.reach.value, *description.fails}
    if operation.path not in OPEN:
        statuses.add(401)
    if description.reads is not None or description.form is not None:
        statuses |= {400, 413}
    if description.query is not None or description.headers:
        statuses.add(400)
    own = family_of(operation.path).statuses
    moved = {problem.status: own[error] for error, problem in TABLE.items() if error in own}
    return {moved.get(status, status) for status in statuses} - set(description.also)


def _failure(status: int, schema: JsonSchemaValue) -> dict[str, Any]:
    headers = ["X-Request-Id", *(["Retry-After"] if status in (429, 503) else [])]
    return _response(_error_words(status), headers, {JSON: {"schema": schema}})


_MEANINGS = {
    201: "Made.",
    202: "Made, and waits for its turn.",
    206: "The part that was asked for.",
    204: "Nothing more will come.",
}


def _error_words(status: int) -> str:
    """The types of errors that have this status."""
    problems = [*TABLE.values(), *BY_STATUS.values()]
    return ", ".join(f"`{name}`" for name in dict.fromkeys(each.type for each in problems if each.status == status))


def _response(words: str, headers: Sequence[str], content: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "description": words,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in headers},
    }
    return told | ({"content": content} if content else {})
