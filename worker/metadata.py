"""The keys and values in the head of a GGUF file, typed as they stand there.

Knows no llama.cpp, which tells them as texts: there a number has six places, so that 1e-12 is 0.000000, and a list is
left out.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

Scalar = int | float | bool | str
Value = Scalar | list[Scalar] | None

LONGEST_LIST = 64
"""Items: one for each layer of a model may be worth telling, one for each token is not."""
LONGEST_TEXT = 4096
"""Bytes: licences and templates are longer."""
MOST_BYTES = 65536
"""Of all keys and values together: who asks gets them in one piece, by way of Redis."""

_NUMBERS = tuple(struct.Struct(f"<{code}") for code in "BbHhIif?")
_LONG_NUMBERS = {kind: struct.Struct(f"<{code}") for kind, code in ((10, "Q"), (11, "q"), (12, "d"))}
_FORMATS = dict(enumerate(_NUMBERS)) | _LONG_NUMBERS
"""By the number that GGUF has for a type."""
_FLOAT32, _TEXT, _LIST = 6, 8, 9
_LENGTH = struct.Struct("<Q")
_KIND = struct.Struct("<I")
_BEGINNING = struct.Struct("<4sIQQ")


def read_metadata(path: Path) -> dict[str, Value]:
    """All keys, in their order; None for a value that is too long to be told, or is no number. When what is told has
    come to MOST_BYTES, the rest is left out.

    Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Takes some 30 ms
    for a vocabulary of 49 thousand, whose texts have to be stepped over one by one. Raises OSError, and ValueError
    when this is no such file.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        head = _Head(content)
        try:
            return head.read()
        except struct.error:
            raise ValueError(f"the head of {path} is cut off") from None


class _Head:
    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._at = 0

    def read(self) -> dict[str, Value]:
        magic, version, _, n_keys = self._numbers(_BEGINNING)
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError("this is no GGUF file of version 2 or 3")
        found: dict[str, Value] = {}
        left = MOST_BYTES
        for _ in range(n_keys):
            name = self._text()
            begun = self._at
            value = self._value(self._number(_KIND))
            left -= len(name or "") + (0 if value is None else self._at - begun)
            if left < 0:
                break
            if name:
                found[name] = value
        return found

    def _value(self, kind: int) -> Value:
        if kind == _LIST:
            return self._list(self._number(_KIND), self._number(_LENGTH))
        if kind == _TEXT:
            return self._text()
        return self._scalar(kind)

    def _list(self, kind: int, n_items: int) -> Value:
        if n_items > LONGEST_LIST:
            self._skip(kind, n_items)
            return None
        items = [self._text() if kind == _TEXT else self._scalar(kind) for _ in range(n_items)]
        return None if None in items else [item for item in items if item is not None]

    def _skip(self, kind: int, n_items: int) -> None:
        if kind == _TEXT:
            for _ in range(n_items):
                n_bytes = self._number(_LENGTH)
                self._at += n_bytes
        else:
            self._at += n_items * self._format(kind).size

    def _text(self) -> str | None:
        n_bytes = self._number(_LENGTH)
        begun, self._at = self._at, self._at + n_bytes
        return self._content[begun : self._at].decode("utf-8", "replace") if n_bytes <= LONGEST_TEXT else None

    def _scalar(self, kind: int) -> Scalar | None:
        value: Scalar = self._numbers(self._format(kind))[0]
        if kind == _FLOAT32:
            value = float(str(np.float32(value)))  # 1e-05 as it was meant, and not 9.999999747378752e-06
        return value if not isinstance(value, float) or math.isfinite(value) else None

    def _format(self, kind: int) -> struct.Struct:
        if kind not in _FORMATS:
            raise ValueError(f"a value of type {kind}, which GGUF does not have")
        return _FORMATS[kind]

    def _number(self, form: struct.Struct) -> int:
        number: int = self._numbers(form)[0]
        return number

    def _numbers(self, form: struct.Struct) -> tuple[Any, ...]:
        found = form.unpack_from(self._content, self._at)
        self._at += form.size
        return found
