"""ollama's `format`: what is one, and that an object has no properties that its schema does not name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.schemas.ollama.fields import GenerateBody
from api.schemas.strict import read
from shared.errors import InvalidRequest


@pytest.mark.parametrize("value", [None, ""])
def test_a_format_may_be_left_open(value: Any) -> None:
    assert read(GenerateBody, {"format": value}).constraint is None


@pytest.mark.parametrize(("value", "schema"), [("json", '{"type":"object"}'), ({"type": "array"}, '{"type":"array"}')])
def test_a_format_is_any_object_or_what_its_schema_says(value: Any, schema: str) -> None:
    constraint = read(GenerateBody, {"format": value}).constraint
    assert constraint is not None
    assert (constraint.syntax, constraint.text, constraint.name) == ("json_schema", schema, "format")


@pytest.mark.parametrize(("value", "shown"), [("xml", '"xml"'), (5, "5"), ([], "[]"), (True, "true")])
def test_no_other_format_is_taken(value: Any, shown: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(GenerateBody, {"format": value})
    assert refused.value.message == f'invalid format: {shown}; expected "json" or a valid JSON Schema'


def test_a_schema_that_cannot_be_kept_is_refused_by_the_name_of_the_field() -> None:
    with pytest.raises(InvalidRequest, match=r"^Field 'format': the schema has the unknown type 'strange'"):
        read(GenerateBody, {"format": {"type": "strange"}})


def kept(schema: dict[str, Any]) -> Any:
    constraint = read(GenerateBody, {"format": schema}).constraint
    assert constraint is not None
    return json.loads(constraint.text)


NAMES = {"properties": {"name": {"type": "string"}}}
CLOSED = {**NAMES, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (NAMES, CLOSED),
        ({"type": "array", "items": NAMES}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [NAMES, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"$defs": {"A": NAMES}, "$ref": "#/$defs/A"}, {"$defs": {"A": CLOSED}, "$ref": "#/$defs/A"}),
        ({"prefixItems": [NAMES, True]}, {"prefixItems": [CLOSED, True]}),
        ({"properties": {"a": NAMES}}, {"properties": {"a": CLOSED}, "additionalProperties": False}),
        (
            {"properties": {"properties": NAMES, "not": {}, "enum": NAMES}},
            {"properties": {"properties": CLOSED, "not": {}, "enum": CLOSED}, "additionalProperties": False},
        ),
    ],
)
def test_an_object_has_the_properties_that_are_named_and_no_others(schema: Any, closed: Any) -> None:
    assert kept(schema) == closed


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"additionalProperties": {"type": "integer"}, **NAMES},
        {"patternProperties": {"^x": {}}, **NAMES},
        {"enum": [{"properties": {"a": 1}}]},
        {"allOf": [NAMES, {"properties": {"age": {"type": "integer"}}}]},
        {"anyOf": [{"properties": {"age": {"type": "integer"}}}], **NAMES},
        {"type": "array", "items": {"$defs": {"A": NAMES}, "$ref": "#/items/$defs/A", **NAMES}},
    ],
)
def test_a_schema_that_says_what_else_there_may_be_is_left_as_it_is(schema: Any) -> None:
    assert kept(schema) == schema


@pytest.mark.parametrize("schema", [{"properties": 5}, {"items": {"properties": []}}, {"$defs": "x"}])
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^Field 'format': the schema's"):
        kept(schema)
