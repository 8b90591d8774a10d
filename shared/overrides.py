"""`KEY=TYPE:VALUE`: one value of a model's metadata that is read otherwise than its file says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

LONGEST = 127
"""Bytes of a key and of a text: llama.cpp keeps each in 128, with a NUL at its end."""
_TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class MetadataOverride:
    key: str
    value: int | float | bool | str

    @classmethod
    def parse(cls, text: str) -> Self:
        """ValueError with what is wrong in `text`, in one sentence."""
        key, mark, typed = text.partition("=")
        kind, colon, value = typed.partition(":")
        if not (mark and colon):
            raise ValueError(f"{text!r} must be KEY=TYPE:VALUE, where TYPE is int, float, bool or str")
        if not 0 < len(key.encode()) <= LONGEST or "\0" in text:
            raise ValueError(f"{text!r} must have a key of 1 to {LONGEST} bytes")
        return cls(key, _value(text, kind, value))


def _value(text: str, kind: str, value: str) -> int | float | bool | str:
    match kind:
        case "bool" if value in _TRUTHS:
            return _TRUTHS[value]
        case "int" if _is_integer(value):
            return int(value)
        case "float" if _is_number(value):
            return float(value)
        case "str" if len(value.encode()) <= LONGEST:
            return value
        case "bool" | "int" | "float":
            raise ValueError(f"{text!r}: {value!r} is no {kind}")
        case "str":
            raise ValueError(f"{text!r}: a str has at most {LONGEST} bytes")
        case _:
            raise ValueError(f"{text!r}: {kind!r} is none of int, float, bool, str")


def _is_integer(value: str) -> bool:
    try:
        return -(2**63) <= int(value) < 2**63
    except ValueError:
        return False


def _is_number(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False
