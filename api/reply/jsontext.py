"""JSON as it comes, piece by piece: where an object ends, and what a string says. Knows no marks and no replies.

Nothing is judged: a model may be cut anywhere, and what it wrote is passed on as it is.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_SIGNS: Final = re.compile(r'["\\{}\[\]]')
_PLAIN: Final = re.compile(r'[^"\\]+')
_CODE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_HALF: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
"""An escape that goes beyond the text's end."""
_SHORT: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class ObjectEnd:
    """Finds the end of the JSON object or list that a text begins with."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_string = False
        self._is_escaped = False
        """The next character is a string's, whatever it is."""

    def push(self, text: str) -> int | None:
        """How much of this text belongs to it; None for all of it, when more may come."""
        at = 1 if self._is_escaped and text else 0
        self._is_escaped = self._is_escaped and not text
        while (found := _SIGNS.search(text, at)) is not None:
            at = found.end()
            match found[0]:
                case "\\" if self._is_string:
                    self._is_escaped = at == len(text)
                    at += 1
                case '"':
                    self._is_string = not self._is_string
                case "{" | "[" if not self._is_string:
                    self._depth += 1
                case "}" | "]" if not self._is_string:
                    self._depth -= 1
                    if self._depth <= 0:
                        return at
        return None


class Spelled(NamedTuple):
    """What a stretch of a JSON string says, and how much of it was read."""

    text: str
    end: int
    is_closed: bool = False
    """It was read to behind the closing quote."""


def spelled(text: str) -> Spelled:
    """Reads on in a string, behind its opening quote. Half an escape at the end, or the first one of a pair of
    surrogates, is left unread: it is no character yet."""
    said: list[str] = []
    at = 0
    while at < len(text):
        if (plain := _PLAIN.match(text, at)) is not None:
            said.append(plain[0])
            at = plain.end()
        elif text[at] == '"':
            return Spelled("".join(said), at + 1, is_closed=True)
        elif (character := _character(text, at)) is not None:
            said.append(character.text)
            at = character.end
        else:
            break
    return Spelled("".join(said), at)


def _character(text: str, at: int) -> Spelled | None:
    """Of the escape there; None when more of the text must come. An escape that JSON does not have is no escape."""
    if _HALF.match(text, at):
        return None
    escape = _CODE.match(text, at)
    if escape is None:
        sign = text[at + 1]
        return Spelled(_SHORT.get(sign, "\\" + sign), at + 2)
    code, end = int(escape[1], 16), escape.end()
    if 0xD800 <= code < 0xDC00:
        if end == len(text) or _HALF.match(text, end):
            return None
        second = _CODE.match(text, end)
        low = int(second[1], 16) if second else 0
        if 0xDC00 <= low < 0xE000:
            return Spelled(chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), end + len(escape[0]))
    return Spelled("\ufffd" if 0xD800 <= code < 0xE000 else chr(code), end)
