"""ollama's `format`: any JSON object, or what a schema says.

As there, and in llama.cpp, an object has the properties that its schema names and no others, unless the schema says
that it may: a small model would never stop adding some. What that leaves still satisfies the schema.
"""

from __future__ import annotations

from typing import Any

from api.schemas.constraints import ANY_OBJECT, NAMED, ONE_OR_SEVERAL, schema_constraint, subschemas
from api.schemas.strict import to_json
from shared.errors import InvalidRequest
from shared.jobs import Constraint

_SAYS = frozenset(("additionalProperties", "patternProperties", "unevaluatedProperties"))
"""Keywords that say what an object may have besides."""
_COMBINES = frozenset(("allOf", "not", "if", "dependentSchemas", "$dynamicRef"))
"""Keywords that hold one object against several schemas. What one of them names the others do not, so that nothing
could satisfy them all if each were closed."""
_ALTERNATES = frozenset(("anyOf", "oneOf", "$ref"))
"""The same beside properties."""


def constraint_of(value: Any) -> Constraint | None:
    """None where the format is left open. Raises InvalidRequest, in ollama's words for what is no format at all."""
    match value:
        case "":
            return None
        case "json":
            return schema_constraint(ANY_OBJECT, "format")
        case dict():
            return schema_constraint(_closed(value) if _is_simple(value) else value, "format")
    raise InvalidRequest(
        f'invalid format: {to_json(value).decode():.100}; expected "json" or a valid JSON Schema', param="format"
    )


def _is_simple(root: dict[str, Any]) -> bool:
    """Whether no object in it is held against several schemas. Raises InvalidRequest for what is no schema."""
    waiting: list[Any] = [root]
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, dict):
            if not _COMBINES.isdisjoint(schema) or ("properties" in schema and not _ALTERNATES.isdisjoint(schema)):
                return False
            waiting += subschemas(schema, "format")
    return True


def _closed(schema: Any) -> Any:
    """The same, in which each object that names properties has no others."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {**schema}
    for keyword in ONE_OR_SEVERAL:
        if keyword in schema:
            closed[keyword] = _closed(schema[keyword])
    for keyword in NAMED:
        if keyword in schema:
            closed[keyword] = {name: _closed(each) for name, each in schema[keyword].items()}
    if "properties" in schema and _SAYS.isdisjoint(schema):
        closed["additionalProperties"] = False
    return closed
