"""Which constraint a request has, and that one which cannot be honoured is refused before anything is queued."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from api.schemas.constraints import MAX_LENGTH, constraint_of
from api.schemas.llamacpp import completion, infill
from api.schemas.openai import chat, completions
from shared.errors import InvalidRequest, NotSupported
from shared.jobs import Constraint, Generation

INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    ("fields", "syntax", "text", "field"),
    [
        ({"grammar": 'root ::= "a"'}, "gbnf", 'root ::= "a"', "grammar"),
        ({"regex": "a+"}, "regex", "a+", "regex"),
        ({"json_schema": INTEGER}, "json_schema", '{"type":"integer"}', "json_schema"),
        ({"json_schema": {}}, "json_schema", "{}", "json_schema"),
        ({"json_schema": True}, "json_schema", "true", "json_schema"),
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}', "response_format"),
        (
            {"response_format": {"type": "json_object", "schema": INTEGER}},
            "json_schema",
            '{"type":"integer"}',
            "response_format",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {}}}},
            "json_schema",
            "{}",
            "response_format",
        ),
        (
            {"grammar": "", "regex": "a", "json_schema": None, "response_format": {"type": "text"}},
            "regex",
            "a",
            "regex",
        ),
    ],
)
def test_each_field_says_what_the_text_has_to_be(fields: dict[str, Any], syntax: Any, text: str, field: str) -> None:
    assert constraint_of(fields) == Constraint(syntax=syntax, text=text, field=field)


@pytest.mark.parametrize(
    "fields", [{}, {"grammar": ""}, {"grammar": None}, {"regex": ""}, {"response_format": {"type": "text"}}], ids=str
)
def test_no_constraint_is_none(fields: dict[str, Any]) -> None:
    assert constraint_of(fields) is None


@pytest.mark.parametrize(
    ("ask", "fields"),
    [
        (completion, {"prompt": "a"}),
        (completions, {"prompt": "a"}),
        (infill, {"input_prefix": "a", "input_suffix": "b"}),
        (chat, {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
def test_every_path_takes_one(ask: Any, fields: dict[str, Any]) -> None:
    request = ask({**fields, "grammar": "x"}).request
    assert isinstance(request, Generation)
    assert request.constraint == Constraint(syntax="gbnf", text="x", field="grammar")


@pytest.mark.parametrize("value", ["text", 5, {}, {"type": "sound"}, {"type": "json_schema"}, {"type": None}], ids=str)
def test_a_response_format_that_is_none_is_refused(value: Any) -> None:
    refused({"response_format": value}, "response_format")


@pytest.mark.parametrize(
    "schema",
    [
        5,
        [],
        "{}",
        False,
        {"type": 123},
        {"type": "hiccup"},
        {"type": ["string", "nope"]},
        {"type": [{}]},
        {"items": 5},
        {"properties": []},
        {"properties": {"type": 5}},
        {"anyOf": [{"type": "string"}, {"type": "nope"}]},
        {"$ref": "#/$defs/none"},
        {"$ref": "#/$defs/a/5", "$defs": {"a": {}}},
        {"$ref": "http://127.0.0.1:9/x.json"},
        {"$ref": "other.json"},
        {"$ref": 5},
        {"items": {"$ref": "file:///etc/passwd"}},
        {"const": 2**53 + 1},
        {"enum": [[{"a": -(10**22)}]]},
        {"const": "x" * MAX_LENGTH},
        {"const": "\ud800"},
    ],
    ids=lambda schema: str(schema).encode("ascii", "replace").decode()[:40],
)
def test_a_schema_that_cannot_be_honoured_is_refused(schema: Any) -> None:
    refused({"json_schema": schema}, "json_schema")
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    refused({"response_format": wanted}, "response_format")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"type": {"type": "string"}, "$ref": {}, "items": True}},
        {"const": {"type": "nope", "$ref": "x"}, "enum": [{"$ref": 5}], "default": {"type": "nope"}},
        {"$defs": {"a~/b c": INTEGER}, "$ref": "#/$defs/a~0~1b%20c"},
        {"$defs": {"a": {"anyOf": [INTEGER]}}, "$ref": "#/$defs/a/anyOf/0"},
        {"type": "array", "items": {"$ref": "#"}},
        {"$id": "http://a.b/c", "$ref": "http://a.b/c#/$defs/a", "$defs": {"a": INTEGER}},
        {"$defs": {"a": {"$anchor": "here", "type": "integer"}}, "$ref": "#here"},
        {"type": ["string", "null"], "items": [INTEGER], "additionalProperties": False},
        {"const": True, "enum": [2**53, 1e300]},
    ],
    ids=str,
)
def test_what_only_looks_wrong_is_taken(schema: Any) -> None:
    constraint = constraint_of({"json_schema": schema})
    assert constraint is not None
    assert json.loads(constraint.text) == schema


@pytest.mark.parametrize("field", ["grammar", "regex"])
@pytest.mark.parametrize("value", [5, True, {}, ["a"], "a\0b", "a\ud800b", "x" * (MAX_LENGTH + 1)], ids=repr)
def test_a_text_that_is_none_is_refused(field: str, value: Any) -> None:
    refused({field: value}, field)


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": "x", "json_schema": {}},
        {"grammar": "x", "response_format": {"type": "json_object"}},
        {"json_schema": {}, "response_format": {"type": "json_object"}},
        {"regex": "x", "grammar": "x"},
    ],
    ids=str,
)
def test_two_at_once_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="together") as caught:
        constraint_of(fields)
    assert caught.value.param in fields


@pytest.mark.parametrize("name", ["grammar_lazy", "grammar_triggers", "preserved_tokens"])
def test_a_grammar_that_begins_later_is_not_supported(name: str) -> None:
    value = True if name == "grammar_lazy" else ["x"]
    with pytest.raises(NotSupported, match=name):
        completion({"prompt": "a", "grammar": "x", name: value})


def test_the_largest_schema_is_checked_in_a_moment() -> None:
    properties = {f"p{number}": {"$ref": "#/$defs/a"} for number in range(7000)}
    started = time.monotonic()
    assert constraint_of({"json_schema": {"$defs": {"a": INTEGER}, "properties": properties}}) is not None
    assert time.monotonic() - started < 1.0


def refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        constraint_of(fields)
    assert caught.value.param == field
    assert caught.value.message.startswith(f"Field '{field}': ")
