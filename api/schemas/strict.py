"""JSON, strictly both ways, and the base of all models of a client's JSON. Knows no field of any API.

Python's reader takes NaN, turns 1e400 into infinity and lets lone surrogates through; each would fail much later,
in Redis, in a worker or in C. So they are refused here, with deep nesting, before anything else sees them.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError, model_validator

from shared.errors import InvalidRequest

MAX_DEPTH = 64
"""Nesting that is let through: far beyond any request, far below where the readers behind us give up."""

MAX_VALUES = 1_000_000
"""Values of one body that are let through. Each takes about a microsecond, and the event loop stands still for a part
of it even where a thread takes the body apart: 8 million made it stand for seconds."""

MAX_DIGITS = 40
"""Digits of an integer that is let through to its field, which then says its own bounds."""

MAX_NAME = 200
"""Characters of a field's name that an error repeats: the client made it up."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_LINE_ENDS = ("\u0085", "\u2028", "\u2029")
"""What JSON may have in a text as it is, and yet ends a line for `str.splitlines`, by which Python's clients read lines
(`iter_lines` of httpx, and so of `openai` and `ollama`): each would be told of two halves of an object."""


def to_json(value: Any) -> bytes:
    """Compact UTF-8, on one line however it is split. ValueError for NaN and infinities: no client must see these."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if not text.isascii():
        for end in _LINE_ENDS:
            text = text.replace(end, f"\\u{ord(end):04x}")
    return text.encode()


def parse_object(raw: bytes) -> dict[str, Any]:
    """A client's JSON object; of duplicate keys the last one counts. Raises InvalidRequest."""
    value = parse(raw)
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object")
    return value


def parse_list(raw: bytes) -> list[Any]:
    """The same for the few paths whose body is a list."""
    value = parse(raw)
    if not isinstance(value, list):
        raise InvalidRequest("The body must be a JSON array")
    return value


def parse(raw: bytes, what: str = "The body", *, max_depth: int = MAX_DEPTH) -> Any:
    """A client's JSON, whatever it is; errors call it `what`. Raises InvalidRequest."""
    try:
        return _parse(raw, max_depth)
    except _Fault as fault:
        raise InvalidRequest(f"{what} {fault}") from None


class _Fault(Exception):
    """What is wrong with a text, as said of it."""


def _parse(raw: bytes, max_depth: int) -> Any:
    if not raw:
        raise _Fault("is empty, and must be JSON")
    if raw.count(b",") >= MAX_VALUES:
        _check_number(raw)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise _Fault("is not valid UTF-8") from None
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=_bounded)
    except json.JSONDecodeError as error:
        raise _Fault(f"is not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _Fault("is nested too deeply") from None
    if text.count("[") + text.count("{") > max_depth:
        _check_depth(value, max_depth)
    if _SURROGATE.search(text):
        _check_text(value)
    return value


def _refuse(name: str) -> NoReturn:
    raise _Fault(f"is not valid JSON: {name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _Fault("has a number that is out of range")
    return number


def _bounded(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _Fault("has a number that is out of range")
    return int(digits)


def _check_number(raw: bytes) -> None:
    """Commas divide values where they stand in no string."""
    marks = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    if marks.count(b'"') > 2 * MAX_VALUES or sum(part.count(b",") for part in marks.split(b'"')[::2]) >= MAX_VALUES:
        raise _Fault(f"has more than {MAX_VALUES} values")


def _check_depth(value: Any, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _Fault("is nested too deeply")


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _Fault("has a lone surrogate, which is not text") from None


class ClientFields(BaseModel):
    """Fields of a client's JSON: no type is converted, null means absent, unknown fields are let through."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, fields: Any) -> Any:
        if isinstance(fields, dict):
            return {name: value for name, value in fields.items() if value is not None}
        return fields


def by_hand(form: Any) -> PlainValidator:
    """Of a field that goes to its reader as it came, because no model can say what is wrong with it; `form` is the type
    of what that reader takes, for the API's description of itself."""
    return PlainValidator(lambda value: value, json_schema_input_type=form)


def needs_one_of(*names: str) -> dict[str, Any]:
    """The same of fields of which one must be there; for a model's `json_schema_extra`."""
    return {"anyOf": [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]}


class OwnFields(ClientFields):
    """The same for paths that are ours alone, where an unknown field is a mistake worth telling."""

    model_config = ConfigDict(extra="forbid")


_REASONS = {
    "missing": "is needed",
    "model_type": "Input should be an object",
    "model_attributes_type": "Input should be an object",
    "dict_type": "Input should be an object",
}
"""For what pydantic says in words of Python's, or with the names of our classes."""

Fields = TypeVar("Fields", bound=BaseModel)


def read(model: type[Fields], fields: dict[str, Any] | list[Any]) -> Fields:
    """The typed form of `fields`. Raises InvalidRequest that names the first field at fault."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = _path(first["loc"])
        reason = _REASONS.get(first["type"]) or first["msg"].removeprefix("Value error, ")
        if not name:
            raise InvalidRequest(f"The body: {reason}") from None
        raise InvalidRequest(f"Field '{name}': {reason}", param=name) from None


def bad_field(name: str, reason: str) -> InvalidRequest:
    """The error of a field that a model cannot judge alone."""
    return InvalidRequest(f"Field '{name}': {reason}", param=name)


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path if len(path) <= MAX_NAME else f"{path[:MAX_NAME]}…"
