"""What the text has to be, from the fields in which clients say so: a grammar, a schema, a pattern, or any JSON.

Checked here is what needs no model and no grammar engine; what else is wrong is found by a worker before it accepts
the job. Nothing is ever left out of a schema: what cannot be honoured is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NotRequired
from urllib.parse import unquote

from pydantic import Field
from typing_extensions import TypedDict

from api.schemas.strict import ClientFields, bad_field, by_hand
from shared.jobs import Constraint

MAX_LENGTH = 256 * 1024
"""Of a constraint, in characters."""
MAX_EXACT = 2**53
"""Integers beyond are rounded by most readers of JSON, among them the one that writes out constants."""

TYPES = frozenset(("null", "boolean", "object", "array", "number", "string", "integer"))
ANY_OBJECT = {"type": "object"}

_ONE = ("additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then")
ONE_OR_SEVERAL = (*_ONE, "allOf", "anyOf", "items", "oneOf", "prefixItems")
NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
"""Keywords whose values are schemas, or lists of them; and those whose values have schemas by name."""


Text = Annotated[str, Field(max_length=MAX_LENGTH)]


class PlainFormat(TypedDict):
    type: Literal["text"]


class ObjectFormat(TypedDict):
    type: Literal["json_object"]
    schema: NotRequired[dict[str, Any] | bool | None]
    """llama.cpp's addition."""


class NamedSchema(TypedDict):
    schema: dict[str, Any] | bool


class SchemaFormat(TypedDict):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class ConstraintFields(ClientFields):
    """At most one of them."""

    grammar: Annotated[Any, by_hand(Text)] = None
    """GBNF."""
    json_schema: Annotated[Any, by_hand(dict[str, Any] | bool)] = None
    """What the text must be an instance of."""
    response_format: Annotated[Any, by_hand(PlainFormat | ObjectFormat | SchemaFormat)] = None
    """OpenAI's way to say the same."""
    regex: Annotated[Any, by_hand(Text)] = None
    """What the whole text must match."""


def constraint_of(fields: Mapping[str, Any]) -> Constraint | None:
    """The one constraint of a request, if there is any. Raises InvalidRequest with the name of the field."""
    found = {name: constraint for name, read in _READERS.items() if (constraint := read(fields.get(name))) is not None}
    if len(found) > 1:
        first, second, *_ = found
        raise bad_field(second, f"cannot be used together with '{first}'")
    return next(iter(found.values()), None)


def schema_constraint(schema: Any, field: str) -> Constraint:
    """Of a JSON schema that a client gave in `field`."""
    if not isinstance(schema, dict | bool):
        raise bad_field(field, "a JSON schema must be an object or a boolean")
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    _check_text(text, field)
    _check_schema(schema, field)
    return Constraint(syntax="json_schema", text=text, field=field)


def _grammar(value: Any) -> Constraint | None:
    text = _text(value, "grammar")
    return Constraint(syntax="gbnf", text=text, field="grammar") if text else None


def _regex(value: Any) -> Constraint | None:
    text = _text(value, "regex")
    return Constraint(syntax="regex", text=text, field="regex") if text else None


def _json_schema(value: Any) -> Constraint | None:
    return None if value is None else schema_constraint(value, "json_schema")


def _response_format(value: Any) -> Constraint | None:
    """OpenAI's, and llama.cpp's schema beside `json_object`."""
    field = "response_format"
    if value is None:
        return None
    match value:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            schema = value.get("schema")
            return schema_constraint(ANY_OBJECT if schema is None else schema, field)
        case {"type": "json_schema", "json_schema": {"schema": dict() | bool() as schema}}:
            return schema_constraint(schema, field)
        case {"type": "json_schema"}:
            raise bad_field(field, "its 'json_schema' must be an object with a 'schema'")
    raise bad_field(field, "its type must be 'text', 'json_object' or 'json_schema'")


_READERS = {"grammar": _grammar, "json_schema": _json_schema, "response_format": _response_format, "regex": _regex}


def _text(value: Any, field: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise bad_field(field, "must be a string")
    if "\0" in value:
        raise bad_field(field, "has a NUL character")
    _check_text(value, field)
    return value


def _check_text(text: str, field: str) -> None:
    if len(text) > MAX_LENGTH:
        raise bad_field(field, f"has {len(text)} characters, and at most {MAX_LENGTH} are taken")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise bad_field(field, "has a lone surrogate, which is not text") from None


def _check_schema(root: dict[str, Any] | bool, field: str) -> None:
    if root is False:
        raise bad_field(field, "nothing satisfies the schema")
    waiting: list[Any] = [root]
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            raise bad_field(field, "a schema within the schema is neither an object nor a boolean")
        _check_type(schema, field)
        _check_reference(schema, root, field)
        _check_constants(schema, field)
        waiting += subschemas(schema, field)


def subschemas(schema: dict[str, Any], field: str) -> Iterator[Any]:
    """What stands directly in a schema where a schema belongs. Raises InvalidRequest."""
    for keyword in ONE_OR_SEVERAL:
        if keyword in schema:
            value = schema[keyword]
            yield from value if isinstance(value, list) and keyword not in _ONE else (value,)
    for keyword in NAMED:
        value = schema.get(keyword, {})
        if not isinstance(value, dict):
            raise bad_field(field, f"the schema's '{keyword}' must be an object")
        yield from value.values()


def _check_type(schema: dict[str, Any], field: str) -> None:
    if "type" not in schema:
        return
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            raise bad_field(field, f"the schema has the unknown type {name!r:.100}")


def _check_reference(schema: dict[str, Any], root: Any, field: str) -> None:
    """References lead to places in the same schema. Nothing is ever fetched."""
    if "$ref" not in schema:
        return
    reference = schema["$ref"]
    base = root.get("$id")
    if not isinstance(reference, str):
        raise bad_field(field, "the schema has a '$ref' that is not a string")
    place = reference.removeprefix(base) if isinstance(base, str) else reference
    if place not in ("", "#") and not place.startswith("#"):
        raise bad_field(field, f"the schema refers to {reference!r:.100}, and only places in itself are taken")
    if place.startswith("#/") and not _leads_somewhere(place, root):
        raise bad_field(field, f"the schema refers to {reference!r:.100}, where there is nothing")


def _leads_somewhere(pointer: str, root: Any) -> bool:
    """Whether a JSON pointer (RFC 6901) in a fragment does."""
    here = root
    for step in pointer.removeprefix("#/").split("/"):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict) and name in here:
            here = here[name]
        elif isinstance(here, list) and name.isascii() and name.isdecimal() and int(name) < len(here):
            here = here[int(name)]
        else:
            return False
    return isinstance(here, dict | bool)


def _check_constants(schema: dict[str, Any], field: str) -> None:
    waiting = [schema[keyword] for keyword in ("const", "enum") if keyword in schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, int) and abs(value) > MAX_EXACT:
            raise bad_field(field, f"the schema has the constant {value}, which would be rounded")
