"""Fields that others have and this build does not: let through where they change nothing, else refused.

An answer that silently ignored them would not be what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from api.schemas.strict import bad_field
from shared.errors import NotSupported


class Later(NamedTuple):
    """A field that this build does not do: its type, and the values that change nothing."""

    kind: Literal["a number", "a boolean", "a string", "a list", "an object", "any"]
    is_off: Callable[[Any], bool]


_TYPES: dict[str, tuple[type, ...]] = {
    "a number": (int, float),
    "a boolean": (bool,),
    "a string": (str,),
    "a list": (list,),
    "an object": (dict,),
}

FLAG = Later("a boolean", lambda value: not value)
LIST = Later("a list", lambda value: not value)
ALWAYS = Later("any", lambda value: False)
NEGATIVE = Later("a number", lambda value: value < 0)
"""Off when negative."""

LATER: dict[str, Later] = {
    "grammar_lazy": FLAG,
    "grammar_triggers": LIST,
    "preserved_tokens": LIST,
    "multimodal_data": LIST,
}


def refuse_later(fields: Mapping[str, Any], table: Mapping[str, Later]) -> None:
    """Raises NotSupported for a field that would change the answer, InvalidRequest for one of a wrong type."""
    for name, later in table.items():
        value = fields.get(name)
        if value is None:
            continue
        if later.kind != "any" and type(value) not in _TYPES[later.kind]:
            raise bad_field(name, f"must be {later.kind}")
        if not later.is_off(value):
            raise NotSupported(f"Field '{name}': this build does not support it", param=name)
