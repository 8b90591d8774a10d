"""JSON schemas of the types that read bodies and of those that answers have: pydantic's, with what it does not know.

What stands below a field in its class is its description. Knows no path.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema


class Schemas:
    """Those of many types, made together so that they share their definitions."""

    def __init__(self, forms: Iterable[Any]) -> None:
        """None is no type."""
        self._places: dict[Any, int] = {}
        adapters: list[tuple[int, JsonSchemaMode, TypeAdapter[Any]]] = []
        for form in forms:
            if form is not None and form not in self._places:
                self._places[form] = len(adapters)
                adapters.append((len(adapters), "validation", TypeAdapter(form)))
        self._made, shared = TypeAdapter.json_schemas(
            adapters, ref_template="#/components/schemas/{model}", schema_generator=BodySchema
        )
        self.definitions: dict[str, Any] = dict(sorted(shared.get("$defs", {}).items()))

    def of(self, form: Any) -> JsonSchemaValue:
        return self._made[self._places[form], "validation"]


class QuerySchema(GenerateJsonSchema):
    """Pydantic's, with what stands below each field."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _worded(super().model_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        made = super().typed_dict_schema(schema)
        return _worded(made, schema["cls"]) if "cls" in schema else made

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class BodySchema(QuerySchema):
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


def without_null(schema: Mapping[str, Any]) -> JsonSchemaValue:
    """The schema of a value that is there, and says what it is by a type or by several forms."""
    kept = {key: value for key, value in schema.items() if key != "default" or value is not None}
    if isinstance(kinds := kept.get("type"), list):
        (kept["type"],) = (kind for kind in kinds if kind != "null")
    if "anyOf" in kept:
        forms = [form for form in kept.pop("anyOf") if form != {"type": "null"}]
        return {**kept, **forms[0]} if len(forms) == 1 else {**kept, "anyOf": forms}
    return kept


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
