"""One OpenAPI 3.1 document of all routes, made of what their functions say of themselves. Knows no path by name.

Schemas are pydantic's of the types that read bodies; field by field, what stands below it in its class is its
description.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema
from starlette.routing import BaseRoute, Route

from api.access import OPEN
from api.openapi.description import Description, Operation, Reach, operations_of
from api.problems import BY_STATUS, TABLE, family_of

JSON = "application/json"

_INTRODUCTION = """\
Requests become jobs in a queue; workers that run llama.cpp answer them.

Bodies are strict JSON, whatever their content type says: NaN, infinities, lone surrogates and numbers of the wrong type
are refused with 400 and the field's name. null means absent. Paths that other servers have too ignore unknown fields,
those of jobs refuse them. Any model's name is taken while one model is served; while several are, it must be one of
them. Every answer has an X-Request-Id."""

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
    schemas = _Schemas(operations)
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


def _operation_json(operation: Operation, schemas: _Schemas, failures: dict[str, Any]) -> dict[str, Any]:
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
    schema = description.query.model_json_schema(schema_generator=_Worded)
    definitions = schema.get("$defs", {})
    for name, value in schema["properties"].items():
        told = {"name": name, "in": "query", "required": name in schema.get("required", ())}
        if words := value.pop("description", None):
            told["description"] = words
        yield told | {"schema": _resolved(_without_null(value), definitions)}


def _without_null(schema: JsonSchemaValue) -> JsonSchemaValue:
    """A query says that something is absent by not naming it."""
    forms = [form for form in schema.get("anyOf", ()) if form != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default") or value not in (None,)}
    return {**{key: value for key, value in rest.items() if key != "anyOf"}, **forms[0]} if len(forms) == 1 else rest


def _resolved(schema: JsonSchemaValue, definitions: Mapping[str, JsonSchemaValue]) -> JsonSchemaValue:
    reference = schema.pop("$ref", None)
    return {**schema, **definitions[reference.rpartition("/")[2]]} if reference else schema


def _header_parameters(description: Description) -> Iterator[dict[str, Any]]:
    for name, words in description.headers.items():
        yield {"name": name, "in": "header", "required": False, "description": words, "schema": {"type": "string"}}


def _answers(description: Description, schemas: _Schemas) -> Iterator[tuple[str, dict[str, Any]]]:
    headers = ["X-Request-Id", *(["X-Job-Id"] if _tells_job(description) else [])]
    content = {JSON: {"schema": schemas.of(description.gives)}} if description.gives is not None else {}
    if description.gives_text:
        content[description.gives_text] = {"schema": {"type": "string"}}
    for stream in description.streams:
        content[stream.media_type] = {"schema": {"type": "string"}, "x-piece": schemas.of(stream.piece)}
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
    if description.reads is not None:
        statuses |= {400, 413}
    if description.query is not None or description.headers:
        statuses.add(400)
    return statuses - set(description.also)


def _failure(status: int, schema: JsonSchemaValue) -> dict[str, Any]:
    headers = ["X-Request-Id", *(["Retry-After"] if status in (429, 503) else [])]
    return _response(_error_words(status), headers, {JSON: {"schema": schema}})


_MEANINGS = {201: "Made.", 202: "Made, and waits for its turn.", 204: "Nothing more will come."}


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


class _Schemas:
    """The schemas of all types that the operations name, made together so that they share their definitions."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        reads = [each.description.reads for each in operations if each.description]
        gives = [form for each in operations if each.description for form in _given(each.description)]
        forms = [*reads, *gives, *(family_of(each.path).form for each in operations)]
        self._places: dict[Any, int] = {}
        adapters: list[tuple[int, JsonSchemaMode, TypeAdapter[Any]]] = []
        for form in forms:
            if form is not None and form not in self._places:
                self._places[form] = len(adapters)
                adapters.append((len(adapters), "validation", TypeAdapter(form)))
        self._made, shared = TypeAdapter.json_schemas(
            adapters, ref_template="#/components/schemas/{model}", schema_generator=_BodySchema
        )
        self.definitions: dict[str, Any] = dict(sorted(shared.get("$defs", {}).items()))

    def of(self, form: Any) -> JsonSchemaValue:
        return self._made[self._places[form], "validation"]


def _given(description: Description) -> Iterator[Any]:
    yield description.gives
    yield from description.also.values()
    yield from (stream.piece for stream in description.streams)


class _Worded(GenerateJsonSchema):
    """Pydantic's, with what stands below each field."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _worded(super().model_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        made = super().typed_dict_schema(schema)
        return _worded(made, schema["cls"]) if "cls" in schema else made

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class _BodySchema(_Worded):
    """Where null means absent, as in all that clients send."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        made = super().default_schema(schema)
        if made.get("default", "") is None:
            del made["default"]
        return _or_null(made)


def _or_null(schema: JsonSchemaValue) -> JsonSchemaValue:
    if "enum" in schema or "const" in schema or "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    if isinstance(kind := schema.get("type"), str):
        return schema if kind == "null" else {**schema, "type": [kind, "null"]}
    if "anyOf" in schema and {"type": "null"} not in schema["anyOf"]:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return schema


def _worded(made: JsonSchemaValue, cls: type) -> JsonSchemaValue:
    words = _words_of(cls)
    for name, schema in made.get("properties", {}).items():
        if name in words:
            schema["description"] = words[name]
    return made


@cache
def _words_of(cls: type) -> Mapping[str, str]:
    """What stands below each field of a class and of those that it is made of. Read when it is asked for: pydantic
    would do it at each start."""
    words: dict[str, str] = {}
    for base in reversed(getattr(cls, "__orig_bases__", cls.__bases__)):
        if isinstance(base, type) and base not in (BaseModel, object, dict):
            words |= _words_of(base)
    try:
        tree = ast.parse(dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return words
    (definition,) = tree.body
    assert isinstance(definition, ast.ClassDef)
    for field, below in pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                words[name] = inspect.cleandoc(text)
    return words
